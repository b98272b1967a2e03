"""Ports of membership: ordinals of users, conversations and their versions, the change log.

A version is immutable: a map {shard: bitmap version} and one RoaringBitmap of user ordinals per
(shard, bitmap version). A change writes the bitmaps of the shards that it touches and what is new in
the map. Every change, also one of a role or a name, makes the next version.

Spec: §4, §5.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Intervals = tuple[tuple[int, int | None], ...]


class OrdinalDirectory(Protocol):
    """u32 ordinals of users, per tenant, never reused. The low six bits are the user's lane."""

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """The ordinal of each user, allocated where there was none."""

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """The ordinal of each user, None where there is none."""

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """The user of each ordinal, None where there is none."""

    async def restore(self, tenant_id: str, seats: Sequence[tuple[str, int]]) -> int:
        """Put back what logs say of (user, ordinal); how many were missing. What logs say stands."""

    def forget(self) -> None:
        """Drop what this process remembers: the store behind it may have lost it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A user in a conversation. Intervals are (joined_seq, left_seq): messages with
    joined_seq < seq <= left_seq were for this user; left_seq is None while the member is active."""

    user_id: str
    ordinal: int
    role: str  # owner, admin, member
    active: bool
    intervals: Intervals


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation's head as the store holds it."""

    tenant_id: str
    conversation_id: str
    kind: str  # direct, group
    version: int
    seq: int  # last allocated conversation_seq, 0 = none
    name: str
    send_policy: str  # members, admins
    join_policy: str  # invite, open
    history_policy: str  # joined (from the join on), all
    members_max: int
    members_active: int
    created_at: int
    creator_id: str
    dismissed: bool


@dataclass(frozen=True, slots=True)
class Join:
    """A user who becomes an active member."""

    user_id: str
    ordinal: int
    role: str


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A change computed from version `expected_version` (0 = create). The store applies it whole or not.

    `joins` must not be active and `leaves` must be (the version says so); each gets the conversation's
    seq at the moment of the change as the edge of its interval. `token` (16 bytes, new for every change)
    makes a repeat after an unknown outcome recognise itself.
    """

    tenant_id: str
    conversation_id: str
    expected_version: int
    token: bytes
    at_ms: int
    joins: Sequence[Join] = ()
    leaves: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    bitmaps: Mapping[int, bytes] = field(default_factory=dict)  # shard -> serialized; empty: nobody left
    head: Mapping[str, str | int] = field(default_factory=dict)  # changed fields of the head


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change as the store made it: the head after it, the rows of those it touched, one per user."""

    head: Conversation
    touched: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A conversation whose rows may not be in the change log yet, as of `version`."""

    tenant_id: str
    conversation_id: str
    version: int


@dataclass(frozen=True, slots=True)
class RestoredVersion:
    """A version of a conversation made again out of the change log.

    `members`: whom it touched, as of then. `maps`: version rows that it needs, its own and those of lost
    versions before it, whose members nobody knows any more: {version: map}. `bitmaps`: {shard: bytes}, all
    with this version as their number.
    `logged`: whether the change log has it; if not, it is unsettled once it is put back.
    """

    head: Conversation
    at_ms: int
    members: Sequence[Member]
    maps: Mapping[int, Mapping[int, int]]
    bitmaps: Mapping[int, bytes]
    logged: bool = True


class MembershipStore(Protocol):
    """Conversations and versions, in the Outbox partition's slot: changes and seq allocation are one zone.

    Writes are fenced by `epoch` (FencedError). StoreError UNKNOWN is settled by repeating the same call.
    """

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """The head, None when there is no such conversation."""

    async def members(self, tenant_id: str, conversation_id: str, user_ids: Sequence[str]) -> list[Member]:
        """Those of `user_ids` that are or were members, in that order."""

    async def page(
        self, tenant_id: str, conversation_id: str, after_user_id: str, limit: int
    ) -> list[Member]:
        """Active members with an id above `after_user_id`, ascending by the bytes of the id."""

    async def everyone(self, tenant_id: str, conversation_id: str) -> list[Member]:
        """All members ever, active and left. Costly for a large group: not on a common path."""

    async def apply(
        self, partition: int, epoch: int, changes: Sequence[MembershipChange]
    ) -> list[AppliedChange | None]:
        """What each made; None where `expected_version` is no longer current (nothing written there).

        A conversation that changed is unsettled until `settle`. Head and rows are of one moment, the change.
        An empty list is a proof: it succeeds only while the store has all that this owner wrote, so
        what was read before it was not the state of a store that had lost writes (else InvariantViolation).
        """

    async def unsettled(self, partition: int, epoch: int, limit: int) -> list[Unsettled]:
        """Up to `limit` conversations with changes that were not settled."""

    async def settle(self, partition: int, epoch: int, done: Sequence[Unsettled], offset: int) -> None:
        """The change log has these versions, the last row at `offset`. What changed again stays unsettled."""

    async def logged(self, partition: int, epoch: int) -> int:
        """The highest offset of the change log that was ever settled here, -1 for none.

        Every change up to it was applied in this store before, so a store that knows the offset has them.
        """

    async def restore(
        self, partition: int, epoch: int, versions: Sequence["RestoredVersion"], offset: int
    ) -> int:
        """Put back versions that are missing, in order; returns how many were.

        `offset`: the change log is covered up to here afterwards, -1 when more follows. A version that is
        there is left alone. The versions are settled where the change log has them.
        """

    async def collect(
        self, partition: int, epoch: int, tenant_id: str, conversation_id: str, before_ms: int
    ) -> int:
        """Forget versions that were superseded before `before_ms`; returns how many (a bounded number)."""


class MembershipReader(Protocol):
    """What fan-out and mailbox stages need. Reads are bulk; results are immutable and may be cached."""

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """{shard: bitmap version} for each (tenant, conversation, version), None when unknown."""

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """Serialized RoaringBitmap for each (tenant, conversation, shard, bitmap version)."""


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One row of ``qim.membership.v1``: a member or, with an empty key suffix, the head."""

    tenant_id: str
    conversation_id: str
    key: bytes
    value: bytes


class MembershipLog(Protocol):
    """The change log of memberships, compacted: the last row of a key stands."""

    def append(self, rows: Sequence[MembershipRow]) -> Awaitable[list[int]]:
        """Hand `rows` over now, in order; the awaitable gives their offsets once ALL are acknowledged.

        Raises StoreError (NOT_APPLIED) when there is no room; the awaitable raises StoreError (UNKNOWN).
        """


class ChangeLogReader(Protocol):
    """Reads the change log of an Outbox partition's conversations from outside of any consumer group."""

    def read(self, partition: int, start: int) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
        """Batches of (offset, key, value) from `start` (inclusive) to the end of the log as of this call.

        Errors as `commit.ports.OutboxReader`. A compacted log may have holes.
        """
