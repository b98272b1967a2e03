"""How long a poll of the presence log keeps the next partition waiting. Spec: §6, §11 (P15)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qim_streams.push import presence_follower
from qim_streams.push.presence_follower import PresenceFollower
from tests.support.waiting import eventually


class EmptyLog:
    """A consumer of a log without records; `polls`: (partitions assigned, how long it may wait, ms)."""

    def __init__(self, **_: Any) -> None:
        self.assigned = 0
        self.polls: list[tuple[int, int]] = []

    async def start(self) -> None:
        """Connected."""

    async def stop(self) -> None:
        """Gone."""

    async def beginning_offsets(self, places: Sequence[Any]) -> dict[Any, int]:
        """All begin at 7."""
        return dict.fromkeys(places, 7)

    end_offsets = beginning_offsets

    def assign(self, places: Sequence[Any]) -> None:
        """Read these from now on."""
        self.assigned = len(places)

    def seek(self, place: Any, offset: int) -> None:
        """They are empty."""

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        """Nothing, at once."""
        self.polls.append((self.assigned, timeout_ms))
        await asyncio.sleep(0)
        return {}


async def test_shards_that_come_one_after_the_other_wait_for_no_long_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[EmptyLog] = []

    def consumer(**options: Any) -> EmptyLog:
        made.append(EmptyLog(**options))
        return made[-1]

    monkeypatch.setattr(presence_follower, "AIOKafkaConsumer", consumer)
    monkeypatch.setattr(presence_follower, "_MORE_S", 3_600.0)
    follower = PresenceFollower("broker:9", "presence", "test")
    try:
        await follower.follow(0)  # returns at once: nobody waits for this one
        await eventually(lambda: made[0].polls, what="a poll")
        await follower.follow(1)
        await eventually(lambda: made[0].polls[-1][0] == 2, what="both are read")
        assert {timeout_ms for _, timeout_ms in made[0].polls} == {presence_follower._POLL_AWAITED_MS}
        follower._more_until_s = 0.0  # long afterwards
        await eventually(lambda: made[0].polls[-1][1] == presence_follower._POLL_MS, what="calm polls")
    finally:
        await follower.close()
