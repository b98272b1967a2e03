"""Ports of the webhooks. Implementations: `http_poster`; for tests a scripted one behind the same suite."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Answer(NamedTuple):
    """What an endpoint answered. `body`: its beginning; `retry_after_s`: how long to wait."""

    status: int
    body: bytes = b""
    retry_after_s: float | None = None


class Poster(Protocol):
    """Sends requests to endpoints of applications."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """One request, no redirect followed. EndpointUnavailable: no answer in time; it may have arrived."""

    async def close(self) -> None:
        """Give connections up."""
