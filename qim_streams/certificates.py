"""The certificates of a process: contexts out of settings, read again while the role runs.

Spec: §14.9.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from qim_streams.settings import Settings
from qim_streams.tls import CertificateWatch, LinkTls, ServerFiles, client_context


def link_tls(settings: Settings) -> LinkTls | None:
    """How to connect to other roles; None without TLS. ConfigError for files of no use."""
    cert, key, ca = _internal(settings)
    if cert is None:
        return None
    return LinkTls(client_context("internal_tls_cert_file", ca, cert, key), settings.internal_tls_name)


def internal_files(settings: Settings, *, must_show: bool = False) -> ServerFiles | None:
    """The files of a server for other roles; None without TLS.

    `must_show` false: a peer without a certificate gets as far as the readiness page.
    """
    cert, key, ca = _internal(settings)
    if cert is None or key is None:
        return None
    return ServerFiles("internal_tls_cert_file", cert, key, ca, must_show=must_show)


def internal_server(settings: Settings, watch: CertificateWatch) -> ssl.SSLContext | None:
    """The context of an internal RPC server, which asks for certificates itself; None without TLS."""
    files = internal_files(settings)
    return None if files is None else watch.context(files)


def gateway_server(settings: Settings, watch: CertificateWatch) -> ssl.SSLContext | None:
    """The context of client sockets; None without TLS."""
    cert, key = settings.gateway_tls_cert_file, settings.gateway_tls_key_file
    if cert is None or key is None:
        return None
    return watch.context(ServerFiles("gateway_tls_cert_file", cert, key))


def api_server(settings: Settings, watch: CertificateWatch) -> ssl.SSLContext | None:
    """The context of the admin API; None without TLS."""
    cert, key = settings.api_tls_cert_file, settings.api_tls_key_file
    if cert is None or key is None:
        return None
    return watch.context(ServerFiles("api_tls_cert_file", cert, key))


@contextlib.asynccontextmanager
async def watched(settings: Settings) -> AsyncIterator[CertificateWatch]:
    """A watch that runs inside the block."""
    watch = CertificateWatch(settings.tls_reload_s)
    running = asyncio.create_task(watch.run(), name="certificates")
    try:
        yield watch
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _internal(settings: Settings) -> tuple[Path | None, Path | None, Path | None]:
    return settings.internal_tls_cert_file, settings.internal_tls_key_file, settings.internal_tls_ca_file
