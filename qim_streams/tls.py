"""TLS contexts out of PEM files, and files that are read again when they change.

Invariants: TLS 1.2 or newer; what we connect to is always checked against authorities and by its name; a
server's certificate that cannot be read leaves the one in use in place, and a log line says so.

What it does not do: decide who needs a certificate; take authorities back without a restart (new ones are
added when their file changes).

Spec: §14.9.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from qim_streams.errors import ConfigError

log = logging.getLogger(__name__)


class ServerFiles(NamedTuple):
    """What a server shows, and whom it lets in. `setting`: the setting that named the certificate.

    `client_ca`: authorities of clients; with `must_show` a client without a certificate is refused in the
    handshake, else the application asks (`shows_certificate`).
    """

    setting: str
    cert: Path
    key: Path
    client_ca: Path | None = None
    must_show: bool = True


class LinkTls(NamedTuple):
    """How to connect to another role: `name` is what its certificate must bear, empty: the host asked."""

    context: ssl.SSLContext
    name: str = ""


def server_context(files: ServerFiles) -> ssl.SSLContext:
    """The context of a server; ConfigError names the setting when a file is of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if files.must_show else ssl.CERT_OPTIONAL
    _load(context, files)
    return context


def client_context(
    setting: str, ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """The context of a client that checks the server; `ca` None: the system's authorities."""
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert is not None and key is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"{setting}: {_said(error)}; give PEM files") from error
    return context


def loopback_context() -> ssl.SSLContext:
    """Of a question to a process of this machine whether it is ready: its certificate has another name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def shows_certificate(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has shown a certificate, which the handshake has checked then."""
    found = None if transport is None else transport.get_extra_info("ssl_object")
    return found is not None and found.getpeercert(binary_form=True) is not None


class CertificateWatch:
    """Reads the files of running servers again when they change. `run` never ends."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._watched: list[tuple[ServerFiles, ssl.SSLContext, list[object]]] = []

    def context(self, files: ServerFiles) -> ssl.SSLContext:
        """`server_context(files)`, watched from now on."""
        made = server_context(files)
        self._watched.append((files, made, _marks(_paths(files))))
        return made

    async def run(self) -> None:
        """Look at the files every `interval_s`."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> int:
        """Read again what has changed; how many certificates were taken over."""
        taken = 0
        for number, (files, context, before) in enumerate(self._watched):
            marks = _marks(_paths(files))
            if marks == before:
                continue
            try:
                server_context(files)  # a broken pair must not touch the context in use
                _load(context, files)
            except ConfigError as error:
                # Looked at again next time: certificate and key are seldom replaced in one step.
                log.error("a changed certificate is not used: %s", error)
                continue
            self._watched[number] = (files, context, marks)
            taken += 1
            log.info("%s: read again", files.setting)
        return taken


def _load(context: ssl.SSLContext, files: ServerFiles) -> None:
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(cafile=str(files.client_ca))
    except OSError as error:
        raise ConfigError(f"{files.setting}: {_said(error)}; give a certificate, its key, PEM") from error


def _paths(files: ServerFiles) -> Sequence[Path]:
    return [path for path in (files.cert, files.key, files.client_ca) if path is not None]


def _marks(paths: Sequence[Path]) -> list[object]:
    return [file_mark(path) for path in paths]


def file_mark(path: Path) -> object:
    """Something that differs once a file was written or replaced; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _said(error: OSError) -> str:
    return f"{type(error).__name__}: {error.strerror or error}"
