"""Pages of our own processes over HTTP: readiness, partitions, tables. An adapter on aiohttp.

Bounds: two seconds, one megabyte, JSON only, no redirects, a few connections at once. A failure is an
`Answer` with its reason, in words for an operator; nothing is raised.

Spec: §11 (a worker says what it serves).
"""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from qim_streams.console.ports import Answer, Pages, WorkerPage
from qim_streams.console.topology import texts

ASK_S: Final = 2.0
BYTES_MAX: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 16
WORKERS_MAX: Final = 256
NOT_FOUND: Final = 404


class HttpPages:
    """`Pages` on HTTP. Opens connections when asked first; close it after use.

    `tls`: whom to trust and what to show where a URL says https; None: whom the system trusts.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str, fields: Mapping[str, str] | None = None) -> Answer:
        """See `Pages.get`."""
        session = self._opened()
        try:
            async with session.get(url, params=fields or {}, allow_redirects=False) as response:
                body = await response.content.read(BYTES_MAX + 1)
                while len(body) <= BYTES_MAX and not response.content.at_eof():
                    body += await response.content.read(BYTES_MAX + 1)
                if len(body) > BYTES_MAX:
                    return Answer(url, 0, problem=f"the answer is over {BYTES_MAX} bytes")
                return Answer(url, response.status, _json(response.status, body))
        except TimeoutError:
            return Answer(url, 0, problem=f"no answer within {ASK_S:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(url, 0, problem=f"cannot be reached ({type(error).__name__})")
        except ValueError:
            return Answer(url, 0, problem="the answer is no JSON: is this a worker's web view?")

    async def close(self) -> None:
        """Let the connections go."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ASK_S),
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._tls or True),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _json(status: int, body: bytes) -> Any:
    """The content; None of a page that is not there, whatever words say so. ValueError: no JSON."""
    try:
        return json.loads(body)
    except ValueError:
        if status == NOT_FOUND:
            return None
        raise


def worker_urls(setting: str) -> list[str]:
    """The URLs of a setting, without trailing slashes."""
    return [one.strip().rstrip("/") for one in setting.split(",") if one.strip()][:WORKERS_MAX]


async def ask_workers(pages: Pages, urls: Sequence[str]) -> list[WorkerPage]:
    """What each worker's web view says of itself, in the order of `urls`."""
    return list(await asyncio.gather(*(_ask_worker(pages, url) for url in urls)))


async def _ask_worker(pages: Pages, url: str) -> WorkerPage:
    ready, served = await asyncio.gather(pages.get(f"{url}/ready"), pages.get(f"{url}/partitions"))
    for answer in (ready, served):
        if answer.problem is not None or not isinstance(answer.content, dict):
            problem = answer.problem or "the answer is no JSON object"
            return WorkerPage(url, None, None, [f"does not answer: {problem}"], problem=problem)
    return WorkerPage(
        url,
        str(ready.content.get("role"))[:64],
        bool(ready.content.get("ready")),
        texts(ready.content.get("reasons")),
        _by_topic(served.content.get("partitions")),
    )


def _by_topic(rows: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows if isinstance(rows, list) else ():
        if (
            isinstance(row, dict)
            and isinstance(row.get("topic"), str)
            and isinstance(row.get("partition"), int)
        ):
            found.setdefault(row["topic"], []).append(row["partition"])
    return found
