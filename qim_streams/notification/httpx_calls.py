"""One POST at a time to a provider, over HTTP/2 and TLS, with bounds on time, streams and the answer's size.

Connections are kept and shared by all calls of a provider; the server says how many streams it takes. An
error of the network or of the protocol is `Unreachable`: whether the provider got the request is not known
then.

What it does not do: repeat anything, or log a header, an address with a token, or a body.

Spec: §6.
"""

import importlib.util
import logging
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from qim_streams.errors import ConfigError

if importlib.util.find_spec("sniffio") is None:
    # httpcore tries to import it several times per request, and each time the whole path is searched for it:
    # a quarter of what a request costs. A None here says at once that there is none.
    sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # None is what the import system takes

# They log addresses, which hold tokens of devices, and headers, which hold those of providers.
TALKATIVE: Final = ("httpx", "httpcore", "h2", "hpack", "hyperframe")
ANSWER_BYTES_MAX: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 8
KEPT_S: Final = 600.0


class Unreachable(Exception):
    """No answer; the text names the kind of failure and nothing else."""


class Reply(NamedTuple):
    """An answer. Names of headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpCalls:
    """Calls to one provider. Close it after use."""

    def __init__(self, *, timeout_s: float, ca_file: Path | None = None) -> None:
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        limits = httpx.Limits(
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=CONNECTIONS_MAX,
            keepalive_expiry=KEPT_S,
        )
        self._client = httpx.AsyncClient(
            http1=True,
            http2=True,
            verify=_tls(ca_file),
            limits=limits,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S, pool=timeout_s),
            follow_redirects=False,
            trust_env=False,
        )

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """The answer to a POST; Unreachable when there is none."""
        try:
            async with self._client.stream("POST", url, headers=dict(headers), content=content) as answer:
                body = b""
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise Unreachable("the answer is too long")
                return Reply(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(type(error).__name__) from error

    async def close(self) -> None:
        """Give the connections up."""
        await self._client.aclose()


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """The system's authorities, or those of a file alone."""
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"notification_tls_ca_file: {ca_file}: {type(error).__name__}") from None
