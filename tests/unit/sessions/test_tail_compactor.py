"""The mailbox-tail compactor: windows, stores that are away, gaps. Spec: §9."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, NoReturn

import pytest

from qim_streams.errors import Outcome, RecordError, StoreUnavailable
from qim_streams.hlc import encode
from qim_streams.mailbox.members import Addressed, MemberBitmaps
from qim_streams.records import GroupDispatch
from qim_streams.sessions import tail_compactor
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.projection import SessionProjection
from qim_streams.sessions.projection_ports import Advance, CoverOf
from qim_streams.sessions.projection_records import FIRST_EPOCH, Checkpoint, Cover, SessionRow, Slot
from qim_streams.sessions.tail_compactor import TailCompactor
from tests.support.waiting import eventually

TENANT, SHARD, NOW_MS = "acme", 2, 10_000


class Store(MemoryProjection):
    """A store that may be away, or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.writes = 0

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """See the port."""
        if self.error is not None:
            raise self.error
        self.writes += 1
        return await super().write(rows)


class NoBitmaps:
    """A membership store that has forgotten every version."""

    async def bitmaps(self, wanted: Sequence[object]) -> list[bytes | None]:
        """See `MembershipReader`."""
        return [None for _ in wanted]


def compactor(store: Store, wide_above: int = 64, **more: Any) -> TailCompactor:
    def die(why: str) -> NoReturn:
        raise AssertionError(why)

    nobody: Any = NoBitmaps()
    times = count(NOW_MS)
    projection = SessionProjection(
        store=store, reader=nobody, members=MemberBitmaps(nobody, 16), watermark=nobody, log_range=nobody,
        now_ms=lambda: next(times), wide_above=wide_above, die=die,
    )  # fmt: skip
    return TailCompactor(projection, wide_above, **{"window_s": 60.0, "events_max": 4} | more)


def record(offset: int, *ordinals: int, conversation: str = "c1", shard: int = SHARD) -> Addressed:
    activity = encode(100 + offset, 0, 1)
    dispatch = GroupDispatch(
        TENANT, b"d" * 16, activity, conversation, offset + 1, activity, "ann", 1, 1, shard, 0, 0, "phone",
        "m", b"digest!!", 0, offset, 5, offset + 1, None,
    )  # fmt: skip
    return Addressed(offset, dispatch, list(ordinals))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def tail(store: Store) -> AsyncIterator[TailCompactor]:
    made = compactor(store)
    yield made
    await made.close()


def at(store: Store, offset: int) -> Any:
    """Whether the checkpoint stands there."""
    return lambda: store.stands.get(SHARD, Checkpoint(0, -9, 0)).offset == offset


async def test_a_window_is_over_after_enough_events(tail: TailCompactor, store: Store) -> None:
    """One write for what was said meanwhile, folded."""
    tail.begin(SHARD, 0)
    tail.feed(SHARD, [record(0, 1), record(1, 1), record(2, 65)])
    assert store.rows == {}
    tail.feed(SHARD, [record(3, 1)])
    await eventually(at(store, 3), what="the flush")
    assert store.rows == {(TENANT, 1): {"c1": 103}, (TENANT, 65): {"c1": 102}}
    assert store.writes == 1
    assert store.stands[SHARD].epoch == FIRST_EPOCH


async def test_a_window_is_over_after_its_time(store: Store) -> None:
    tail = compactor(store, window_s=0.01)
    tail.begin(SHARD, 0)
    tail.feed(SHARD, [record(0, 1)])
    await eventually(at(store, 0), what="the flush")
    await tail.close()


async def test_a_shard_that_leaves_is_flushed(tail: TailCompactor, store: Store) -> None:
    """A clean stop leaves no gap: the next worker goes on in the same epoch."""
    tail.begin(SHARD, 0)
    tail.feed(SHARD, [record(0, 1)])
    await tail.release(frozenset({SHARD}))
    assert at(store, 0)()
    following = compactor(store)
    following.begin(SHARD, 1)
    following.feed(SHARD, [record(1, 1)])
    await following.release(frozenset({SHARD}))
    assert store.stands[SHARD] == Checkpoint(FIRST_EPOCH, 1, -1)
    await following.close()


async def test_a_store_that_is_away_is_waited_for(
    tail: TailCompactor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window stays open, what comes meanwhile is folded in, first_seq stays the first."""
    monkeypatch.setattr(tail_compactor, "RETRY_S", 0.01)
    store.error = StoreUnavailable("away", Outcome.UNKNOWN)
    tail.begin(SHARD, 0)
    for offset in range(8):
        tail.feed(SHARD, [record(offset, 1)])
    await eventually(lambda: tail._windows.events >= 8 and SHARD not in tail._starts, what="a failed flush")
    store.error = None
    await eventually(at(store, 7), what="the flush")
    assert store.rows == {(TENANT, 1): {"c1": 107}}
    (waiting,) = store.queue[TENANT, 1].values()
    assert waiting.first_seq == 1
    assert store.stands[SHARD].epoch == FIRST_EPOCH


async def test_a_crash_with_an_open_window_begins_an_epoch(store: Store) -> None:
    """What was in the window does not come again: users are rebuilt from their mailboxes."""
    before = compactor(store)
    before.begin(SHARD, 0)
    before.feed(SHARD, [record(0, 1, 65, 129, 193)])
    await eventually(at(store, 0), what="the flush")
    before.feed(SHARD, [record(1, 1)])
    await before.close()
    tail = compactor(store)
    tail.begin(SHARD, 2)
    tail.feed(SHARD, [record(2, 1)])
    await tail.release(frozenset({SHARD}))
    assert store.stands[SHARD] == Checkpoint(NOW_MS, 2, 1)
    await tail.close()


@pytest.mark.parametrize("kind", ["too many", "broken"])
async def test_what_cannot_be_kept_ends_the_epoch(
    tail: TailCompactor, store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A window beyond its bound, or one that the store refuses, is dropped and said to be."""
    monkeypatch.setattr(tail_compactor, "RETRY_S", 0.01)
    tail.begin(SHARD, 0)
    tail.feed(SHARD, [record(0, 1, 65, 129, 193)])
    await eventually(at(store, 0), what="the flush")
    store.error = StoreUnavailable("away") if kind == "too many" else RecordError("broken")
    if kind == "too many":
        monkeypatch.setattr(tail_compactor, "ROWS_MAX", 3)
        tail.feed(SHARD, [record(1, 1, 65, 129, 193)])
        tail.feed(SHARD, [record(2, 1)])
    else:
        tail.feed(SHARD, [record(1, 1, 65, 129, 193), record(2, 1)])
    await eventually(lambda: tail._starts.get(SHARD) == 3, what="to give up")
    store.error = None
    tail.feed(SHARD, [record(3, 1, 65, 129, 193)])
    await eventually(at(store, 3), what="the flush")
    assert store.stands[SHARD] == Checkpoint(NOW_MS, 3, 2)


async def test_any_cuts_give_the_fold(store: Store) -> None:
    chance = Random(5)
    tail, wanted = compactor(store, events_max=7), dict[tuple[int, str], int]()
    tail.begin(SHARD, 0)
    offset = 0
    while offset < 200:
        batch = []
        for _ in range(chance.randrange(1, 9)):
            ordinals = chance.sample(range(9), chance.randrange(1, 4))
            batch.append(record(offset, *ordinals, conversation=f"c{chance.randrange(5)}"))
            for one in ordinals:
                wanted[one, batch[-1].dispatch.conversation_id] = 100 + offset  # type: ignore[union-attr]
            offset += 1
        tail.feed(SHARD, batch)
        if chance.random() < 0.3:
            await tail._flush(None)
    await tail.release(frozenset({SHARD}))
    found = {(user, name): value for (_, user), rows in store.rows.items() for name, value in rows.items()}
    assert found == wanted
    assert store.stands[SHARD].offset == offset - 1
    await tail.close()


class BusyStore(Store):
    """A store whose every call takes a while, in which others go on, and fails by chance when it may."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance, self.failing = chance, False
        self.begun: dict[int, int] = {}  # shard -> the offset before the first one of its epoch

    async def _pass(self) -> None:
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)
        if self.failing and self.chance.random() < 0.2:
            raise StoreUnavailable("away", Outcome.UNKNOWN)

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """See the port."""
        await self._pass()
        return await super().write(rows)

    async def checkpoints(self, shards: Sequence[int]) -> list[Checkpoint | None]:
        """See the port."""
        await self._pass()
        return await super().checkpoints(shards)

    async def begin(self, shard: int, expected: Checkpoint | None, new: Checkpoint) -> Checkpoint:
        """See the port."""
        await self._pass()
        stands = await super().begin(shard, expected, new)
        self.begun[shard] = stands.offset
        return stands

    async def advance(self, moves: Sequence[Advance]) -> list[Checkpoint | None]:
        """See the port."""
        await self._pass()
        return await super().advance(moves)

    async def cover(self, of: CoverOf, cover: Cover) -> None:
        """See the port."""
        await self._pass()
        await super().cover(of, cover)


class Worker:
    """A mailbox worker that serves some shards for a while, feeds its tail, and stops or is killed."""

    def __init__(self, store: BusyStore, log: dict[int, list[Addressed]], chance: Random) -> None:
        self.store, self.log, self.chance = store, log, chance
        self.tail = compactor(store, 3, events_max=5)
        self.serves: set[int] = set()

    async def work(self, turns: int) -> None:
        """Shards come and go while others are fed; every record is fed once, as after a clean stop."""
        flushes: set[asyncio.Task[None]] = set()
        for _ in range(turns):
            shard = self.chance.randrange(len(self.log))
            what = self.chance.random()
            if shard not in self.serves:
                self.serves.add(shard)
                self.tail.begin(shard, len(self.log[shard]))
            elif what < 0.08:
                self.serves.discard(shard)
                await self.tail.release(frozenset({shard}))
            elif what < 0.85:
                self._feed(shard)
            else:
                flush = asyncio.create_task(self.tail._flush(self.chance.choice((None, 0.0, 1e9))))
                flushes.add(flush)
            await asyncio.sleep(0)
        for result in await asyncio.gather(*flushes, return_exceptions=True):
            assert result is None or isinstance(result, StoreUnavailable)

    def _feed(self, shard: int) -> None:
        of_shard, batch = self.log[shard], []
        for _ in range(self.chance.randrange(1, 4)):
            # An even ordinal lives in shard 0, an odd one in shard 1.
            ordinals = [2 * one + shard for one in self.chance.sample(range(40), self.chance.randrange(1, 6))]
            name = f"c{self.chance.randrange(4)}" if len(ordinals) <= 3 else "wide"
            batch.append(record(len(of_shard), *ordinals, conversation=name, shard=shard))
            of_shard.append(batch[-1])
        self.tail.feed(shard, batch)

    async def stop(self) -> None:
        """A clean end."""
        await self.tail.release(frozenset(self.serves))
        await self.tail.close()


@pytest.mark.parametrize("seed", range(40))
async def test_a_checkpoint_covers_nothing_that_has_no_row(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards begin while others are adopted, leave while the store is away, workers are killed (T-K3).

    Whatever happens: what an epoch covers has its rows. What it does not cover is rebuilt from mailboxes.
    """
    monkeypatch.setattr(tail_compactor, "RETRY_S", 0.0)
    monkeypatch.setattr("qim_streams.sessions.wide_covers.RETRY_S", 0.0)
    monkeypatch.setattr(tail_compactor, "ROWS_MAX", 60)
    chance = Random(seed)
    store, log = BusyStore(chance), {0: [], 1: []}
    for _ in range(4):
        worker = Worker(store, log, chance)
        store.failing = chance.random() < 0.5
        await worker.work(30)
        assert worker.tail._task is None or not worker.tail._task.done(), "somebody still writes rows"
        store.failing = chance.random() < 0.2
        if chance.random() < 0.5:
            await worker.stop()
        else:
            await worker.tail.close()
    assert uncovered(store, log) == []


def uncovered(store: BusyStore, log: Mapping[int, Sequence[Addressed]]) -> list[str]:
    """What the checkpoints cover and nobody wrote. Of wide conversations only that they are there."""
    wrong = []
    for shard, records in log.items():
        stands = store.stands.get(shard)
        first = store.begun.get(shard, 0) + 1
        for offset, dispatch, members in records[first : stands.offset + 1] if stands else ():
            assert dispatch is not None
            name = dispatch.conversation_id
            least = 1 if name == "wide" else 100 + offset
            held = [store.rows.get((TENANT, one), {}).get(name, 0) for one in members]
            if min(held) < least:
                wrong.append(f"shard {shard}, offset {offset} of {name}: {held} for {list(members)}")
    return wrong
