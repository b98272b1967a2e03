"""Rows of the session list as frames have them. Pure.

Spec: §9.
"""

from collections.abc import Iterable

from qim_streams.sessions.badges import UserTotals
from qim_streams.sessions.reading import ListPage
from qim_streams.sessions.rows import ListRow
from qim_streams.sessions.rules import TailMessage, is_hidden
from qim_streams.wire.codec import Codec
from qim_streams.wire.codec_msgpack import encode_row
from qim_streams.wire.frames_sessions import LastMessage, SessionDelta, SessionRow, SessionTotals


def row_frame(row: ListRow) -> SessionRow:
    """The row of a conversation."""
    view, state, unread = row.view, row.view.state, row.unread
    return SessionRow(
        conversation_id=view.conversation_id,
        kind=view.kind,
        version=state.version,
        activity=row.activity,
        latest_seq=view.end,
        unread=unread.messages,
        unread_exact=unread.exact,
        mentions=unread.mentions,
        read_seq=state.read_seq,
        deleted_to_seq=state.deleted_to_seq,
        active=view.is_active,
        dismissed=view.dismissed,
        muted=state.muted,
        hidden=is_hidden(state, view.committed_seq),
        pinned_at=state.pinned_at,
        name=view.name,
        peer_user_id=view.peer_id,
        peer_read_seq=row.peer_read_seq,
        mention_seqs=list(row.mention_seqs) or None,
        last=None if row.last is None else _last(row.last),
    )


def row_bytes(row: ListRow) -> bytes:
    """The row in the binary form; made once for each row."""
    data = row.encoded
    if data is None:
        data = row.encoded = encode_row(row_frame(row))
    return data


def list_bytes(codec: Codec, rid: int, page: ListPage) -> bytes:
    """The answer to a PULL_SESSION_LIST in the form of `codec`."""
    position = page.position
    rows = [row_bytes(row) for row in page.rows]
    return codec.encode_session_list(rid, rows, position.seq, position.complete, page.next_cursor)


def totals_frame(found: UserTotals, rid: int | None = None) -> SessionTotals:
    """What is unread in all; `rid` of the request that asked."""
    of = found.totals
    return SessionTotals(
        found.mailbox_seq, found.order, of.unread, of.mentions, of.muted_unread, of.badge, of.complete, rid
    )


def delta_frame(mailbox_seq: int, order: int, rows: Iterable[ListRow]) -> SessionDelta:
    """What another device is told; `order` of the change among all of the user's."""
    return SessionDelta(mailbox_seq, order, [row_frame(row) for row in rows])


def _last(message: TailMessage) -> LastMessage:
    return LastMessage(
        message.seq,
        message.message_id,
        message.sender_id,
        message.state,
        message.committed_at,
        message.body,
        message.truncated,
    )
