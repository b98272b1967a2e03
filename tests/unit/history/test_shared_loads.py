"""Shared loads: few reads for many readers, none of them older than its reader, nobody harmed by others."""

import asyncio
from collections.abc import Sequence

import pytest

from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.history.shared_loads import SharedLoads


class Store:
    """Answers with a number that grows from read to read; every load waits until it is let go."""

    def __init__(self) -> None:
        self.loads: list[list[str]] = []
        self.gates: list[asyncio.Event] = []
        self.failing: set[int] = set()
        self.version = 0

    async def load(self, keys: Sequence[str]) -> list[tuple[str, int]]:
        number = len(self.loads)
        self.loads.append(list(keys))
        gate = asyncio.Event()
        self.gates.append(gate)
        seen = self.version
        await gate.wait()
        if number in self.failing:
            raise StoreUnavailable(f"load {number}")
        return [(key, seen) for key in keys]


async def turns(count: int = 8) -> None:
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_rush_costs_two_reads() -> None:
    """The first reader's read is under way already; the other ninety-nine share the next one."""
    store = Store()
    loads = SharedLoads(store.load, 100)
    readers = [asyncio.create_task(loads.get(["a", "b"]))]
    await turns()
    readers += [asyncio.create_task(loads.get(["a", "b"])) for _ in range(99)]
    await turns()
    assert store.loads == [["a", "b"]]
    store.gates[0].set()
    await turns()
    assert store.loads == [["a", "b"], ["a", "b"]]
    store.gates[1].set()
    assert await asyncio.gather(*readers) == [[("a", 0), ("b", 0)]] * 100
    assert loads.shared == 98 * 2


async def test_no_answer_is_older_than_its_question() -> None:
    """What changed before a reader asked is in his answer, though a read of it was under way."""
    store = Store()
    loads = SharedLoads(store.load, 100)
    before = asyncio.create_task(loads.get(["a"]))
    await turns()
    store.version = 1
    after = asyncio.create_task(loads.get(["a"]))
    await turns()
    store.gates[0].set()
    await turns()
    store.gates[1].set()
    assert (await before, await after) == ([("a", 0)], [("a", 1)])


async def test_overlapping_readers_share_what_overlaps() -> None:
    store = Store()
    loads = SharedLoads(store.load, 100)
    readers = [asyncio.create_task(loads.get(keys)) for keys in (["a", "b"], ["b", "c"], ["c", "d"])]
    await turns()
    assert store.loads == [["a", "b"], ["c"], ["d"]]
    for _ in range(3):
        for gate in store.gates:
            gate.set()
        await turns()
    assert [[key for key, _ in await one] for one in readers] == [["a", "b"], ["b", "c"], ["c", "d"]]
    assert sorted(key for load in store.loads for key in load) == ["a", "b", "b", "c", "c", "d"]


async def test_an_error_ends_its_own_load_only() -> None:
    store = Store()
    loads = SharedLoads(store.load, 100)
    store.failing = {0}
    first = asyncio.create_task(loads.get(["a"]))
    await turns()
    second = asyncio.create_task(loads.get(["a"]))
    await turns()
    store.gates[0].set()
    await turns()
    store.gates[1].set()
    with pytest.raises(StoreUnavailable, match="load 0"):
        await first
    assert await second == [("a", 0)]


async def test_a_reader_that_goes_away_stops_nobody() -> None:
    """The first reader, who started the load, is cancelled, and one that waits; the others get theirs."""
    store = Store()
    loads = SharedLoads(store.load, 100)
    readers = [asyncio.create_task(loads.get(["a"]))]
    await turns()
    readers += [asyncio.create_task(loads.get(["a"])) for _ in range(3)]
    await turns()
    readers[0].cancel()
    readers[1].cancel()
    await turns()
    for gate in (0, 1):
        store.gates[gate].set()
        await turns()
    assert await readers[2] == await readers[3] == [("a", 0)]
    assert len(store.loads) == 2
    third = asyncio.create_task(loads.get(["a"]))
    await turns()
    assert len(store.loads) == 3, "nothing is left behind"
    store.gates[2].set()
    await third


async def test_what_waits_is_bounded() -> None:
    store = Store()
    loads = SharedLoads(store.load, 3)
    first = asyncio.create_task(loads.get(["a", "b"]))
    await turns()
    with pytest.raises(AdmissionRefused) as refused:
        await loads.get(["c", "d"])
    assert (refused.value.code, refused.value.retry_after_ms) == ("OVERLOADED", 200)
    store.gates[0].set()
    await first
    later = asyncio.create_task(loads.get(["c", "d"]))
    await turns()
    store.gates[1].set()
    assert len(await later) == 2


async def test_nothing_is_a_load_of_nothing() -> None:
    store = Store()
    assert await SharedLoads(store.load, 1).get([]) == []
    assert store.loads == []
