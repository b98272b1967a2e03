"""Ports of the reading side: a user's marks and candidates, heads of conversations, the archive, signals.

Spec: §9.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from qim_streams.membership.ports import Member
from qim_streams.sessions.rules import ListPlace
from qim_streams.sync.ports import MailboxAddress

STATES_PAGE_MAX = 1_000


class SessionUser(NamedTuple):
    """Whose list."""

    tenant_id: str
    user_id: str
    ordinal: int


def user_of(address: MailboxAddress) -> SessionUser:
    """The user of a signed-on device."""
    return SessionUser(address.tenant_id, address.user_id, address.ordinal)


class Candidate(NamedTuple):
    """A conversation of a user by its row in the projection. `state` is UserConversationState bytes."""

    conversation_id: str
    activity: int
    state: bytes | None


class CandidatePage(NamedTuple):
    """A stretch of a user's conversations, read in one atomic step.

    `restored`: whether what the archive has of the user's states is in this store. `pinned` and `wide` are
    all that the user has; the latter are those whose rows may be behind their heads. `rows` are the others
    after the place asked for, newest first; fewer than asked for: there are no more. `size` counts all.
    `order` is that of the user's last change (`Replaced.order`), 0 if he has made none.
    """

    restored: bool
    size: int
    pinned: list[Candidate]
    wide: list[Candidate]
    rows: list[Candidate]
    order: int = 0


class StateChange(NamedTuple):
    """Replace `expected` (None: there is no state) by `state`, which has this version and pin."""

    conversation_id: str
    expected: bytes | None
    state: bytes
    version: int
    pinned_at: int


class Replaced(NamedTuple):
    """Which changes were applied, and the order of the call among all that changed something of the user.

    `order` is a time in milliseconds that grows with each such call; 0 when nothing was applied.
    """

    done: list[bool]
    order: int


class UserStateStore(Protocol):
    """States of users where they are read and written. StoreError: repeating the call is safe.

    What was replaced is on the list of what the archive lacks, in the same step (`DirtyStates`).
    """

    async def page(self, user: SessionUser, before: ListPlace | None, limit: int) -> CandidatePage:
        """See `CandidatePage`; `before` is exclusive, None is the top of the list."""

    async def load(
        self, user: SessionUser, conversation_ids: Sequence[str]
    ) -> tuple[bool, list[bytes | None]]:
        """(restored, the states of these conversations), in one atomic step."""

    async def replace(self, user: SessionUser, changes: Sequence[StateChange]) -> Replaced:
        """Apply each change whose expected state is what the store has."""

    async def restore(self, user: SessionUser, states: Sequence[StateChange]) -> None:
        """Put back what the archive has where this store has nothing, and say that it was."""

    async def activities(self, user: SessionUser, conversation_ids: Sequence[str]) -> list[int]:
        """What the user's row of each conversation says, in ms; 0 where he has none."""

    async def read_seqs(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """The state of each (user, conversation), of many users in one round trip."""


class ChangeOrders(Protocol):
    """Orders of what changes a user's list without him (`Replaced.order`). StoreError: repeating is safe."""

    async def next_order(self, user: SessionUser) -> int:
        """An order above all that were given out for the user."""

    async def last_order(self, user: SessionUser) -> int:
        """The newest order that was given out, by whatever; 0 for none."""


class DirtyState(NamedTuple):
    """A state that the archive may lack; `version` is that of the list, not of the bytes."""

    ordinal: int
    conversation_id: str
    version: int
    state: bytes | None


class DirtyStates(Protocol):
    """What the archive may lack, by lane. StoreError: repeat."""

    async def lanes(self) -> list[tuple[str, int]]:
        """(tenant, lane) of every list that may hold something."""

    async def take(self, lane: tuple[str, int], limit: int) -> list[DirtyState]:
        """Up to `limit` of a lane, oldest version first. They stay on the list."""

    async def settle(self, lane: tuple[str, int], done: Sequence[DirtyState]) -> None:
        """The archive has these; what was changed again meanwhile stays on the list."""

    async def forget_lane(self, lane: tuple[str, int], before_ms: int) -> None:
        """Take an empty lane off `lanes`, unless something was added since `before_ms`."""


class ArchivedState(NamedTuple):
    """A state's bytes with its address and version."""

    tenant_id: str
    user_id: str
    conversation_id: str
    version: int
    state: bytes


class UserStateReader(Protocol):
    """The durable copy of the states."""

    async def user_states(
        self, tenant_id: str, user_id: str, after_conversation_id: str, limit: int
    ) -> list[ArchivedState]:
        """States of a user, by id above `after_conversation_id`, ascending, at most `limit`.

        `limit` is 1 to `STATES_PAGE_MAX`. StoreError: read again later.
        """


class UserStateArchive(UserStateReader, Protocol):
    """The durable copy, for its writer."""

    async def store_states(self, states: Sequence[ArchivedState]) -> None:
        """Make states durable. Of one address the highest version stands. StoreUnavailable: repeat."""


class HeadView(NamedTuple):
    """A conversation as one user meets it, and its newest records, read in one atomic step.

    What lies above `committed_seq` is RESERVED: it may still vanish with the hot tier.
    `records` descend from `allocated_seq`, one for each number (None: not in the hot tier), at least one if
    there is any, at most as many as the store deems cheap. `activity` is the time of the newest message,
    in ms (0: none), `last_id` its id (empty: none). `peer_id` is the other member of a direct chat.
    `unchanged`: it ends as the query said, so `records` are left out. `raw` is the store's own.

    Whatever changes a message of a conversation (an edit, a recall) gets a number there, in the same step:
    two views with the same `allocated_seq` and `last_id` have the same messages at and below it.
    """

    kind: str
    name: str
    peer_id: str | None
    peer_ordinal: int | None
    dismissed: bool
    history_policy: str
    allocated_seq: int
    committed_seq: int
    activity: int
    member: Member | None
    records: list[bytes | None]
    last_id: bytes = b""
    unchanged: bool = False
    raw: object = None


class HeadQuery(NamedTuple):
    """A conversation, and the number above which its records are wanted.

    No records come when the conversation still ends with the number `known_seq` and the message `known_id`:
    the caller has them. Nothing at all comes when it ends at or below `skip_to`. `seen` is what came before:
    if the answer is the same, the very object comes again.
    """

    conversation_id: str
    above_seq: int
    known_seq: int = -1
    known_id: bytes = b""
    skip_to: int = -1
    seen: HeadView | None = None


class ConversationHeads(Protocol):
    """Heads of conversations in bulk. Nothing is written. StoreError: read again later."""

    async def heads(self, tenant_id: str, user_id: str, wanted: Sequence[HeadQuery]) -> list[HeadView | None]:
        """The head of each, None where there is no such conversation."""

    async def of_users(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[HeadView | None]:
        """The same for (user, conversation) of any number of users, in one round trip."""


class Position(NamedTuple):
    """How far the list of a user is known to be whole. `seq` is a mailbox_seq of his shard."""

    seq: int
    complete: bool


class ProjectionPosition(Protocol):
    """Where the projection stands for a user; rebuilds his rows if they were lost."""

    async def position(self, user: SessionUser, shard: int) -> Position:
        """Every conversation of which an entry up to `seq` is in the user's mailbox has a row."""

    def doubt(self, user: SessionUser) -> None:
        """The user's list was found empty: look again whether it is whole when it is asked for next."""

    async def watermark(self, user: SessionUser, shard: int) -> int:
        """W of the user's lane: a single conversation, read after this, is at least as new."""

    async def whole(self, users: Sequence[tuple[SessionUser, int]]) -> list[bool]:
        """Make the rows of users of shards whole, as `position`; whether the projection vouches for each."""


class Signals(Protocol):
    """What is told to the gateways that have a device of a user now. May be lost; never repeated."""

    def tell_all(self, user: SessionUser, data: bytes) -> None:
        """Hand `data` (a msgpack frame or a note) to all of the user's devices. Never waits."""
