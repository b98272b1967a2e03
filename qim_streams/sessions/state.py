"""UserConversationState: what one user has done in one conversation, as it is stored.

A state is replaced whole; `version` orders its writes (milliseconds, larger than the one before), so the
highest version stands wherever states meet. `deleted` are single messages above `deleted_to_seq`,
ascending, at most `limits.SESSION_DELETES_MAX`.

Spec: §9.
"""

from typing import Any, NamedTuple

from qim_streams.codec import Layout, pack_fields

NOT_HIDDEN = -1


class UserConversationState(NamedTuple):
    """One user in one conversation. Sequence numbers are conversation_seqs, 0 for none.

    `first_seen_seq`: the first message that was for the user when the conversation entered his set.
    `hidden_at_seq`: out of the list until a message above it comes; `NOT_HIDDEN` for a listed one.
    """

    user_id: str
    conversation_id: str
    version: int = 0
    first_seen_seq: int = 0
    first_seen_at: int = 0  # milliseconds
    read_seq: int = 0
    muted: bool = False
    pinned_at: int = 0  # milliseconds; 0: not pinned
    hidden_at_seq: int = NOT_HIDDEN
    deleted_to_seq: int = 0
    deleted: tuple[int, ...] = ()
    extra: tuple[Any, ...] = ()

    def encode(self) -> bytes:
        """The state's bytes."""
        return pack_fields(self[:11] + self.extra)


_LAYOUT = Layout("UserConversationState", str, str, int, int, int, int, bool, int, int, int, tuple[int, ...])
_new = tuple.__new__


def decode_state(data: bytes) -> UserConversationState:
    """A state from its bytes; RecordError if they are not one."""
    fields = _LAYOUT.read(data)
    return _new(UserConversationState, (*fields[:11], fields[11:]))
