"""The ports of the mailbox stage: where mailboxes live, and where its own progress lives.

Spec: §5, §7.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.watermark import Marks

NOTHING = -1


class EntryGroup(NamedTuple):
    """One stored value for many mailboxes. `ordinals` are the users that get it, ascending."""

    tenant_id: str
    mailbox_seq: int
    event_ordinal: int
    value: bytes
    ordinals: Sequence[int]


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """A shard as the store holds it: 64 watermarks (-1 = nothing) and the last writer's epoch.

    `open_record` names a lane of a record that is being written in several steps ("" = none); its first
    `open_steps` steps are in the store. `promised`: W has been there before; a lane that stands below is
    being written again, and what it lacks is not gone.
    """

    epoch: int
    lanes: tuple[int, ...]
    open_record: str = ""
    open_steps: int = 0
    promised: int = NOTHING


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A mailbox row as read back."""

    mailbox_seq: int
    event_ordinal: int
    value: bytes


class Stretch(NamedTuple):
    """(after_seq, up_to_seq] of a user's mailbox."""

    shard: int
    tenant_id: str
    ordinal: int
    after_seq: int
    up_to_seq: int


class MailboxStore(Protocol):
    """Mailboxes and watermarks of shards. Writes are fenced by `epoch` (FencedError, nothing written).

    Writing an entry twice is harmless: the second write of a (mailbox_seq, event_ordinal) changes
    nothing, provided that a mailbox's entries are written in order of (mailbox_seq, event_ordinal) and
    that a repetition starts in each lane where the interrupted attempt started. W is given lane by lane
    (`Marks`) and compared as a whole: a lane that is not meant to move is in both. A store that falls back
    to an earlier state of itself loses entries and marks together, so `open_steps` and W stay true.

    StoreError UNKNOWN is resolved by repeating the call or reading the watermark back. At most
    `limits.WRITEBATCH_ENTRIES_MAX` mailboxes per call, ValueError beyond.
    """

    async def write_step(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: Marks, record: str, step: int
    ) -> int:
        """Make the entries of step number `step` (from 0) of `record` durable; W stays at `expected`.

        Returns how many steps of the record stand afterwards: `step` + 1 or more. A smaller number
        means that nothing was written: earlier steps are missing (go on from there), or, for -1, W does
        not stand at `expected`. Step 0 opens a record; another one that was open is forgotten. Calls
        that move W in between leave it open.
        """

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        *,
        record: str = "",
        steps: int = 0,
    ) -> Marks:
        """Entries and then W, atomically: the lanes from `expected` to `observed` by compare-and-set.

        With `record`, all of its `steps` must stand, too, and it is closed. Returns the W that stands
        afterwards: `observed`, or, when a condition did not hold, the persisted W as it was, and nothing
        was written. No lane may go back, at least one must move; `groups` may be empty. Spec: §5.
        """

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """The persisted watermark of each shard, all lanes -1 for a new one. One round trip."""

    async def watermark(self, shard: int) -> WatermarkState:
        """The persisted watermark of one shard."""

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """Entries with after_seq < mailbox_seq <= up_to_seq, ascending, at most `limit`.

        Says nothing about visibility: the caller bounds `up_to_seq` by W[lane].
        """

    async def anything(self, stretches: Sequence[Stretch]) -> list[bool]:
        """Whether each has an entry, or may have had one that was trimmed. One round trip."""

    async def trim(self, shard: int, epoch: int, tenant_id: str, ordinal: int, up_to_seq: int) -> int:
        """Remove the entries at or below `up_to_seq` and raise effective_trim to it, atomically.

        Returns the effective_trim that stands (it never goes down). Fenced.
        """

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """effective_trim(user): everything at or below may be gone; -1 when nothing was trimmed.

        Not below what `promise` said of the whole shard.
        """

    async def promise(
        self, shard: int, epoch: int, promised: int, lost_through: int, kept: KeptPositions | None = None
    ) -> None:
        """Say how far W had come before the store lost writes, and up to where the log is gone. Fenced.

        `promised` replaces what was said before (-1: nothing is owed); `lost_through` is an effective_trim of
        everybody and never goes down. `kept` replaces what was said of old cursors, None leaves it.
        """


Puts = Mapping[bytes, bytes | None]


class LocalIndex(Protocol):
    """Keys of one table partition that have no changelog: lost and rebuilt with the directory."""

    def read(self, key: bytes) -> bytes | None:
        """The value, None when absent."""

    def read_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`."""

    def write_batch(self, puts: Puts) -> None:
        """Write all in one go; None deletes."""

    def iterate(self, start_key: bytes = b"", *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start_key` (inclusive), in key order or against it."""

    def clear(self) -> None:
        """Delete every local key."""


class ChangelogTable(Protocol):
    """A table of bytes with a changelog per partition (`streaming.table.AckedTable`)."""

    def read(self, partition: int, key: bytes) -> bytes | None:
        """The value, None when absent."""

    def iterate(
        self, partition: int, start_key: bytes = b"", *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start_key` (inclusive), in key order or against it."""

    def local(self, partition: int) -> LocalIndex:
        """The partition's keys without changelog."""

    def write_batch(self, partition: int, puts: Puts, local: Puts | None = None) -> None:
        """Write locally in one go and send the changelog of `puts`; durable only after `barrier`."""

    async def barrier(self, partition: int) -> None:
        """Wait until every write so far is acknowledged by the log; raises when one was not."""
