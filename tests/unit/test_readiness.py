"""Reasons against being ready: their one form, and a store that is watched."""

import asyncio

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.readiness import LOOK_S, Readiness, StoreWatch, document, status_of


def test_ready_is_the_absence_of_reasons() -> None:
    said: list[str] = []
    readiness = Readiness(lambda: said, tuple)
    readiness.add(lambda: [f"{one} as well" for one in said])
    assert document(readiness.reasons()) == {"ready": True, "reasons": []}
    assert status_of(readiness.reasons()) == 200
    said.append("frozen")
    assert document(readiness.reasons()) == {"ready": False, "reasons": ["frozen", "frozen as well"]}
    assert status_of(readiness.reasons()) == 503


class Store:
    """Answers, fails or hangs; a clock that moves with each wait."""

    def __init__(self) -> None:
        self.mood, self.now_s, self.looks = "well", 100.0, 0

    async def ask(self) -> None:
        self.looks += 1
        if self.mood == "away":
            raise StoreUnavailable("redis://:password@host is away")
        if self.mood == "hangs":
            raise TimeoutError

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)
        if self.looks >= 5:
            raise asyncio.CancelledError


@pytest.mark.parametrize("mood", ["away", "hangs"])
async def test_a_store_that_fails_twice_is_a_reason_until_it_answers(mood: str) -> None:
    store = Store()
    watch = StoreWatch("redis", store.ask, lambda: store.now_s, store.sleep)
    await watch.look()
    store.mood = mood
    await watch.look()
    assert watch.reasons() == [], "once is chance"
    store.now_s += 7
    await watch.look()
    assert watch.reasons() == ["redis has not answered for 7 s"], "and no address or password"
    store.mood = "well"
    await watch.look()
    assert watch.reasons() == []


async def test_the_watch_looks_for_ever() -> None:
    store = Store()
    store.mood = "away"
    watch = StoreWatch("redis", store.ask, lambda: store.now_s, store.sleep)
    with pytest.raises(asyncio.CancelledError):
        await watch.run()
    assert store.looks == 5
    assert watch.reasons() == [f"redis has not answered for {5 * LOOK_S:.0f} s"]
