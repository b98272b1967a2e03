"""Revisions: which changes of messages a lane has made, so that an old copy of one is never built upon.

A target that only the archive has is read beside the lane. Until the request comes back with it, another
one may have changed the same target, and that change may have been archived and trimmed. What the lane
remembers of it tells that the copy in hand is an old one; the store then asks for another.

Bounded memory: what is forgotten was changed 16,384 changes ago, longer than a read takes.

Spec: §8.
"""

from typing import Final

from qim_streams.commit.outcome import SendRequest
from qim_streams.commit.ports import Change
from qim_streams.commit.requests import Windows
from qim_streams.lru import LruMap
from qim_streams.operations.rules import OPERATORS_DEVICE, readable, revision_of
from qim_streams.records import KIND_EDIT

TARGETS_MAX: Final = 16_384
FOR_EVER: Final = -1


class Revisions:
    """Of one lane."""

    def __init__(self, targets_max: int = TARGETS_MAX) -> None:
        self._known: LruMap[tuple[str, str, int], int] = LruMap(targets_max, targets_max)

    def note(self, send: SendRequest, revision: int) -> None:
        """An edit or recall was committed and gave its target this revision."""
        self._known.put((send.tenant_id, send.conversation_id, send.target_seq), revision)

    def change(self, send: SendRequest, windows: Windows, archived: bytes) -> Change:
        """What an edit or recall does to its target; `archived`: the target's record as read, or empty."""
        if archived:
            known = self._known.get((send.tenant_id, send.conversation_id, send.target_seq)) or 0
            target = readable(archived)
            if target is not None and revision_of(target) < known:
                archived = b""
        window_ms, admin_ms = windows.recall_ms, windows.recall_admin_ms
        if send.kind == KIND_EDIT:
            window_ms, admin_ms = windows.edit_ms, 0
        if send.sender_device_id == OPERATORS_DEVICE:
            window_ms = FOR_EVER
        return Change(send.kind, send.target_seq, send.body, window_ms, admin_ms, archived)
