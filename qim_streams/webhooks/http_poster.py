"""HTTP requests to endpoints, on aiohttp: kept connections, bounded in number, time and bytes read.

Redirects are not followed: a signed request goes where the file says and nowhere else.
"""

import asyncio
from collections.abc import Mapping

import aiohttp

from qim_streams.errors import EndpointUnavailable
from qim_streams.webhooks.ports import Answer

CONNECTIONS_MAX = 128
ANSWER_BYTES_MAX = 64 * 1024
RETRY_AFTER_MAX_S = 3_600.0


class HttpPoster:
    """`ports.Poster`. Make it on a running event loop."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, limit_per_host=CONNECTIONS_MAX)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """See the port."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.post(
                    url, data=body, headers=headers, allow_redirects=False
                ) as answer:
                    begin = await answer.content.read(ANSWER_BYTES_MAX)
                    return Answer(answer.status, begin, _seconds(answer.headers.get("retry-after")))
        except TimeoutError as error:
            raise EndpointUnavailable(f"no answer within {timeout_s:.3g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EndpointUnavailable(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """See the port."""
        await self._session.close()


def _seconds(value: str | None) -> float | None:
    """Retry-After in seconds; a date (rare) or nonsense counts as none."""
    try:
        return min(max(float(value or ""), 0.0), RETRY_AFTER_MAX_S)
    except ValueError:
        return None
