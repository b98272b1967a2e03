"""Rows of the session list as frames have them. Pure.

Spec: §9.
"""

from collections.abc import Iterable

from qim_streams.sessions.reading import ListPage, ListRow
from qim_streams.sessions.rules import TailMessage, is_hidden
from qim_streams.wire.frames_sessions import LastMessage, SessionDelta, SessionList, SessionRow


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


def list_frame(rid: int, page: ListPage) -> SessionList:
    """The answer to a PULL_SESSION_LIST."""
    rows = [row_frame(row) for row in page.rows]
    return SessionList(rid, rows, page.position.seq, page.position.complete, page.next_cursor)


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
