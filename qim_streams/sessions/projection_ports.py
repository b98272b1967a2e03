"""Ports of the session projection: where rows and checkpoints live, and what users are rebuilt from.

Spec: §9.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from qim_streams.sessions.projection_records import Checkpoint, Cover, Registration, SessionRow, Slot


class Advance(NamedTuple):
    """One compare-and-set of a checkpoint: in `epoch`, from `expected` to `observed`.

    `life` is that of the store in which the rows in between were written.
    """

    shard: int
    epoch: int
    expected: int
    observed: int
    life: str


class CoverOf(NamedTuple):
    """Names the members of a conversation in a shard."""

    shard: int
    tenant_id: str
    conversation_id: str


class ProjectionStore(Protocol):
    """Rows, registrations and checkpoints. StoreError UNKNOWN is settled by repeating the call.

    Rows are never fenced: a row only grows, so one written late by an old owner says nothing wrong.
    """

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """Make all rows durable; the activity that stands is the greatest ever written.

        A conversation that is new to a user is registered in the same atomic step. Returns how many were.
        """

    async def checkpoints(self, shards: Sequence[int]) -> list[Checkpoint | None]:
        """The checkpoint of each shard, None where there is none. One round trip."""

    async def begin(self, shard: int, expected: Checkpoint | None, new: Checkpoint) -> Checkpoint:
        """Start an epoch by compare-and-set on the whole checkpoint; the one that stands afterwards."""

    async def life(self) -> str:
        """Another one after the store was started again: rows without a checkpoint behind may be lost."""

    async def advance(self, moves: Sequence[Advance]) -> list[Checkpoint | None]:
        """Move checkpoints by compare-and-set on (life, epoch, offset). One round trip.

        What stands afterwards; None: there is none, or the store has another life than the rows.
        """

    async def covers(self, wanted: Sequence[CoverOf]) -> list[Cover | None]:
        """What is known to be covered of wide conversations. One round trip."""

    async def cover(self, of: CoverOf, cover: Cover) -> None:
        """Note that everybody of the bitmap has the conversation."""


class RegistrationQueue(Protocol):
    """Conversations that are new to users, for whoever keeps UserConversationState."""

    async def life(self) -> str:
        """Another one after the store was started again: what was written just before may be lost."""

    async def tenants(self) -> list[str]:
        """The tenants that the projection has seen: with 64 lanes each, every slot that may hold any."""

    async def pending(self, slots: Sequence[Slot], limit: int) -> list[Registration]:
        """Up to about `limit` registrations of each slot, in no order. One round trip."""

    async def settle(self, done: Sequence[Registration]) -> None:
        """Forget registrations whose states are durable."""


class Rebuilds(Protocol):
    """Which users were rebuilt, and in which epoch."""

    async def has_rows(self, tenant_id: str, ordinal: int) -> bool:
        """Whether the user has any row."""

    async def rebuilt_in(self, tenant_id: str, ordinal: int) -> int | None:
        """The epoch in which the user's rows were rebuilt last, None for never."""

    async def note_rebuilt(self, tenant_id: str, ordinal: int, epoch: int) -> None:
        """The user's rows hold everything from before `epoch`."""


class KnownActivity(Protocol):
    """What else knows the conversations of a user, for rebuilding his rows."""

    async def registered(self, tenant_id: str, ordinal: int) -> list[str]:
        """The conversations of UserConversationState: the durable set."""

    async def activities(
        self, tenant_id: str, user_id: str, conversation_ids: Sequence[str]
    ) -> list[int | None]:
        """The activity of each by its head; None where the user is no active member, or never was one."""
