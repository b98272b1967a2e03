"""Sign-ons in turn: the order they came in, a bound, and no turn for who is too late (T-X7, P16)."""

import asyncio

import pytest

from qim_streams.errors import AdmissionRefused
from qim_streams.gateway.crowd import Crowd
from qim_streams.gateway.turns import AT_ONCE_MAX, Turns
from tests.support.waiting import eventually


def made(in_line_s: float = 60.0) -> Turns:
    return Turns(Crowd(lambda: 1.0), in_line_s)


async def test_turns_are_taken_in_order_and_given_back() -> None:
    turns, served, go = made(), list[int](), asyncio.Event()

    async def one(number: int) -> None:
        async with turns.turn():
            served.append(number)
            await go.wait()

    tasks = [asyncio.create_task(one(number)) for number in range(AT_ONCE_MAX + 5)]
    await eventually(lambda: len(served) == AT_ONCE_MAX)
    assert turns.crowd.waiting == len(tasks)
    tasks[AT_ONCE_MAX].cancel()
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == [number for number in range(len(tasks)) if number != AT_ONCE_MAX]
    assert turns.crowd.waiting == 0


async def test_who_is_too_late_gets_a_place_in_line() -> None:
    turns, go = made(0.01), asyncio.Event()

    async def one() -> None:
        async with turns.turn():
            await go.wait()

    first = [asyncio.create_task(one()) for _ in range(AT_ONCE_MAX)]
    await eventually(lambda: turns.crowd.waiting == AT_ONCE_MAX)
    told = []
    for _ in range(2):
        with pytest.raises(AdmissionRefused) as caught:
            await one()
        assert caught.value.code == "OVERLOADED"
        told.append(caught.value.retry_after_ms)
    assert told[0] < told[1]
    go.set()
    await asyncio.gather(*first)
    await one()
    assert turns.crowd.waiting == 0


def test_a_crowd_is_refused_before_anything_is_done_for_it() -> None:
    turns = made()
    turns.refuse_crowd()
    for _ in range(turns.crowd.room):
        turns.crowd.enter()
    with pytest.raises(AdmissionRefused, match="too many"):
        turns.refuse_crowd()
