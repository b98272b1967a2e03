"""The ports of the push stage: as the mailbox stage uses it, and the presence log as it uses that.

Spec: §6.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from qim_streams.log_ports import LogRecord
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.watermark import Marks


class Pusher(Protocol):
    """Pushes what became visible in a shard to the devices that are online. Moves no cursor."""

    async def attach(self, shard: Shard) -> None:
        """Learn who is online in `shard`; returns when the presence log was read to its end."""

    async def push(self, work: Sequence[tuple[Shard, Sequence[Addressed]]]) -> None:
        """Push the records of each shard above its `pushed_through`, and raise it. W covers all of them."""

    async def push_lanes(self, shard: Shard, records: Sequence[Addressed], through: Marks) -> None:
        """Push what became visible in lanes that stand apart; a record's members may be a part of it.

        In each lane `records` go on in order from call to call. `through`: W lane by lane, at or above all
        of them; devices that come are told of it. On an error the same records come again.
        """

    async def detach(self, shards: frozenset[int]) -> None:
        """Forget who is online in `shards`."""


OnRecords = Callable[[int, Sequence[LogRecord]], Awaitable[None]]


class Follower(Protocol):
    """Reads the presence log of some partitions into a callback, in order, at least once."""

    def start(self, on_records: OnRecords) -> None:
        """Say who gets the records, before the first `follow`."""

    async def follow(self, partition: int) -> None:
        """Read `partition` from its beginning; returns when its end as of now has been handed over.

        StoreUnavailable when the log cannot be asked; then nothing is followed.
        """

    def unfollow(self, partitions: frozenset[int]) -> None:
        """Stop reading `partitions`; nothing more of them is handed over."""

    def failure(self) -> BaseException | None:
        """Why reading has ended, None while it goes on or has not begun."""

    async def close(self) -> None:
        """Stop reading everything."""


class MessageReader(Protocol):
    """Messages of the hot tier (a part of `commit.ports.ConversationStore`)."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the hot tier has none."""
