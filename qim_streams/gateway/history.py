"""A PULL_HISTORY of a client and its answer, between frames and `history.service`.

Spec: §8.
"""

from qim_streams.history.rules import PageQuery
from qim_streams.history.service import HistoryReader, HistoryService
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import HistoryBreak, HistoryPage, PullHistory

NEWER = "newer"


async def history_page(
    histories: HistoryService, codec: Codec, who: MailboxAddress, frame: PullHistory
) -> bytes:
    """The bytes of the HISTORY_PAGE. Who reads comes from the session, never from the frame.

    Raises as `HistoryService.page`.
    """
    reader = HistoryReader(who.tenant_id, who.user_id, frame.conversation_id, who.ordinal)
    query = PageQuery(frame.direction == NEWER, frame.anchor, frame.limit, frame.limit_bytes)
    page = await histories.page(reader, query)
    breaks = [HistoryBreak(*one) for one in page.breaks]
    answer = HistoryPage(frame.rid, frame.conversation_id, [], breaks, *page[2:])
    return codec.encode_history(answer, page.messages)
