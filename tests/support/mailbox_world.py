"""A mailbox of one user on the memory store, with bodies in a hot tier and an archive, for sync tests."""

from collections.abc import Callable, Sequence

from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup, StoredEntry, WatermarkState
from qim_streams.placement import LANES, lane_of_ordinal
from qim_streams.records import RECIPIENT_FLAGS, MessageRecord, UserMailboxEntry
from qim_streams.sync.boundaries import EpochBoundary, resolve
from qim_streams.sync.ports import MailboxAddress

SHARD = 3
ORDINAL = (5 << 6) | 9
ADDRESS = MailboxAddress("acme", "ben", "phone", ORDINAL, SHARD, lane_of_ordinal(ORDINAL))
CONVERSATION = "c1"


def message_id(seq: int, ordinal: int = 0) -> bytes:
    """A message id made from the place of its entry."""
    return (seq * 1_000 + ordinal).to_bytes(16, "big")


def record(conversation_seq: int, identity: bytes, body: bytes = b"x") -> MessageRecord:
    """A message of the conversation."""
    return MessageRecord(
        conversation_seq, 1, "acme", CONVERSATION, identity, identity, "ann", 64, "d", "cm", 1, 77, 0, 0, body
    )


class Bodies:
    """A `BodyReader` over a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], bytes] = {}
        self.asked: list[int] = []

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See `BodyReader.records`."""
        self.asked.append(len(wanted))
        return [self.rows.get(one) for one in wanted]


class HookedStore(MemoryMailboxStore):
    """A store that does something right before or after the next read of rows, as a neighbour would."""

    before_read: Callable[[], object] | None = None
    after_read: Callable[[], object] | None = None

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxStore.read`."""
        hook, self.before_read = self.before_read, None
        if hook:
            hook()
        rows = await super().read(shard, tenant_id, ordinal, after_seq, up_to_seq, limit)
        hook, self.after_read = self.after_read, None
        if hook:
            hook()
        return rows


class Epochs:
    """`ShardEpochs` and `EpochBoundaries` of a memory store whose `shards` change owner together.

    A takeover notes W, as the script does that grants an epoch.
    """

    def __init__(self, store: MemoryMailboxStore, shards: Sequence[int]) -> None:
        self._store, self._shards = store, shards
        self.epoch = 0
        self.boundaries: dict[tuple[int, int], EpochBoundary] = {}
        self.take_over()

    def take_over(self) -> None:
        """Grant the next epoch of every shard."""
        self.epoch += 1
        for shard in self._shards:
            state = run(self._store.watermark(shard))
            assert isinstance(state, WatermarkState)
            self.boundaries[shard, self.epoch] = EpochBoundary(1_000, state.lanes)
            self._store.grant(shard, self.epoch)

    async def current(self, shard: int) -> int:
        """See `ShardEpochs.current`."""
        return self.epoch

    async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        """See `EpochBoundaries.boundary`."""
        since = range(from_epoch + 1, to_epoch + 1)
        return resolve([self.boundaries.get((shard, epoch)) for epoch in since], lane)


class MailboxWorld:
    """One user's mailbox. `entries` is what was ever written: (seq, ordinal)."""

    def __init__(self, store: "HookedStore | None" = None) -> None:
        self.store = store or HookedStore()
        self.epochs = Epochs(self.store, [SHARD])
        self.hot, self.archive = Bodies(), Bodies()
        self.entries: list[tuple[int, int]] = []
        self.tail = -1
        self.trimmed = -1

    async def write(self, seq: int, events: int = 1, body: bytes = b"x") -> None:
        """Write `events` entries at mailbox_seq `seq` and move W there; 0 events: a record for others."""
        groups = []
        for ordinal in range(events):
            number = len(self.entries) + 1
            identity = message_id(seq, ordinal)
            self.hot.rows["acme", CONVERSATION, number] = record(number, identity, body).encode()
            entry = UserMailboxEntry(
                0, identity, CONVERSATION, number, "ann", RECIPIENT_FLAGS, 77, None
            ).encode()
            groups.append(EntryGroup("acme", seq, ordinal, entry, [ORDINAL]))
            self.entries.append((seq, ordinal))
        await self.store.write_and_advance(SHARD, self.epochs.epoch, groups, self.tail, seq)
        self.tail = seq

    def trim(self, up_to_seq: int) -> None:
        """Trim at once, as another process would between two commands of a reader."""
        run(self.store.trim(SHARD, self.epochs.epoch, "acme", ORDINAL, up_to_seq))
        self.trimmed = max(self.trimmed, up_to_seq)

    def take_over(self) -> None:
        """A new owner of the shard."""
        self.epochs.take_over()

    def archive_all(self) -> None:
        """Move every body to the archive."""
        self.archive.rows.update(self.hot.rows)
        self.hot.rows.clear()


def run(coroutine: object) -> object:
    """Run a coroutine that never waits, to its end."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waited")


assert lane_of_ordinal(ORDINAL) < LANES
