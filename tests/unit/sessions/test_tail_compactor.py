"""The mailbox-tail compactor: windows, stores that are away, gaps. Spec: §9."""

from collections.abc import AsyncIterator, Mapping, Sequence
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
from qim_streams.sessions.projection_records import FIRST_EPOCH, Checkpoint, SessionRow, Slot
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


def compactor(store: Store, **more: Any) -> TailCompactor:
    def die(why: str) -> NoReturn:
        raise AssertionError(why)

    nobody: Any = None
    projection = SessionProjection(
        store=store, reader=nobody, members=MemberBitmaps(nobody, 16), watermark=nobody, log_range=nobody,
        now_ms=lambda: NOW_MS, wide_above=64, die=die,
    )  # fmt: skip
    return TailCompactor(projection, 64, **{"window_s": 60.0, "events_max": 4} | more)


def record(offset: int, *ordinals: int, conversation: str = "c1") -> Addressed:
    activity = encode(100 + offset, 0, 1)
    dispatch = GroupDispatch(
        TENANT, b"d" * 16, activity, conversation, offset + 1, activity, "ann", 1, 1, SHARD, 0, 0, "phone",
        "m", b"digest!!", 0, offset, 5, 1, None,
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
