"""Ports of membership: ordinals of users, conversations and their versions.

A version is immutable: a map {shard: bitmap version} and one RoaringBitmap of user ordinals per
(shard, bitmap version). A change writes the bitmaps of the shards that it touches and one new map.

Spec: §4, §5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class OrdinalDirectory(Protocol):
    """u32 ordinals of users, per tenant, never reused. The low six bits are the user's lane."""

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """The ordinal of each user, allocated where there was none."""

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """The ordinal of each user, None where there is none."""

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """The user of each ordinal."""


@dataclass(frozen=True, slots=True)
class Member:
    """A user in a conversation. Intervals are (joined_seq, left_seq): messages with
    joined_seq < seq <= left_seq were for this user; left_seq is None while the member is active."""

    user_id: str
    ordinal: int
    role: str  # owner, admin, member
    active: bool
    intervals: tuple[tuple[int, int | None], ...]


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
    dismissed: bool


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A change computed from version `expected_version` (0 = create). The store applies it whole or not.

    `joins`/`leaves` get the conversation's seq at the moment of the change as their interval's edge.
    """

    tenant_id: str
    conversation_id: str
    expected_version: int
    joins: Sequence[Member] = ()
    leaves: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    bitmaps: Mapping[int, bytes] = field(
        default_factory=dict
    )  # shard -> serialized; empty bytes = no member left
    head: Mapping[str, str | int] = field(default_factory=dict)  # changed fields of the head


class MembershipStore(Protocol):
    """Conversations and versions, in the Outbox partition's slot: changes and seq allocation are one zone."""

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """The head, None when there is no such conversation."""

    async def members(
        self, tenant_id: str, conversation_id: str, user_ids: Sequence[str] | None = None
    ) -> list[Member]:
        """All members ever (active and left), or those asked for that exist."""

    async def apply(self, partition: int, epoch: int, change: MembershipChange) -> Conversation | None:
        """The new head; None when `expected_version` is no longer current (nothing written); FencedError."""


class MembershipReader(Protocol):
    """What fan-out and mailbox stages need. Reads are bulk; results are immutable and may be cached."""

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """{shard: bitmap version} for each (tenant, conversation, version), None when unknown."""

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """Serialized RoaringBitmap for each (tenant, conversation, shard, bitmap version)."""
