"""History as an application reads it: a page, or page after page, of one conversation::

    newest = await client.history("team")
    before = await client.history("team", anchor=newest.next_anchor)
    async for page in client.history.pages("team", direction="newer", anchor=41):
        ...

Nothing here counts as received: what is shown, deduplicated and kept is not touched, and no cursor moves.
Closing what a device missed is the client's own work (`rebuild`).

Invariants: what a page lacks is in its breaks, with the reason; a refusal that may pass is waited out.

Spec: §8.
"""

from collections.abc import AsyncIterator
from typing import Final, Literal

from qim_streams import limits
from qim_streams.client.requests import Requests
from qim_streams.errors import ProtocolError
from qim_streams.wire.frames import HistoryPage, PullHistory

Direction = Literal["newer", "older"]
PAGE: Final = 50


class History:
    """The past of a user's conversations; call it for a page.

    Raises AdmissionRefused (NO_CONVERSATION, NOT_MEMBER), ClientStopped, or TimeoutError when there is no
    answer: asking again is safe.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def __call__(
        self,
        conversation_id: str,
        *,
        direction: Direction = "older",
        anchor: int | None = None,
        limit: int = PAGE,
        limit_bytes: int = limits.HISTORY_BYTES_MAX,
        timeout_s: float | None = None,
    ) -> HistoryPage:
        """A page from `anchor` (exclusive) on; without one from the end (older) or the beginning (newer).

        Messages and breaks ascend in either direction; `next_anchor` is the anchor of the next page.
        """
        return await self._requests.ask(
            lambda rid: PullHistory(rid, conversation_id, direction, anchor, limit, limit_bytes),
            HistoryPage,
            timeout_s,
        )

    async def pages(
        self,
        conversation_id: str,
        *,
        direction: Direction = "older",
        anchor: int | None = None,
        limit: int = PAGE,
        timeout_s: float | None = None,
    ) -> AsyncIterator[HistoryPage]:
        """Page after page to the end, at least one. `timeout_s` is for each.

        Errors as of a single page, and ProtocolError when a page covers nothing and promises more.
        """
        while True:
            page = await self(
                conversation_id, direction=direction, anchor=anchor, limit=limit, timeout_s=timeout_s
            )
            yield page
            if not page.has_more:
                return
            if page.next_anchor == anchor:
                raise ProtocolError("FIELD_INVALID", "a page that covers nothing, and more", field="has_more")
            anchor = page.next_anchor
