"""A JWKS document over HTTP(S): one GET, checked against authorities, without redirects, bounded.

Spec: §7.
"""

import ssl
from collections.abc import Awaitable, Callable

import httpx

from qim_streams.gateway.jwks import ANSWER_S, DOCUMENT_BYTES_MAX


def http_source(url: str, tls: ssl.SSLContext) -> Callable[[], Awaitable[bytes]]:
    """The document at `url`; OSError when it does not come."""

    async def source() -> bytes:
        async with httpx.AsyncClient(
            verify=tls, timeout=ANSWER_S, follow_redirects=False, trust_env=False
        ) as client:
            try:
                async with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
                    if answer.status_code != httpx.codes.OK:
                        raise OSError(f"answered {answer.status_code}")
                    document = b""
                    async for chunk in answer.aiter_bytes():
                        document += chunk
                        if len(document) > DOCUMENT_BYTES_MAX:
                            raise OSError(f"over {DOCUMENT_BYTES_MAX} bytes")
                    return document
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise OSError(type(error).__name__) from error

    return source
