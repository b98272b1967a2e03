"""The watchdog: what it ends a worker for, and what it lets pass (B4, H10)."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from qim_streams.streaming import watchdog
from qim_streams.streaming.spec import AppSpec, SourceSpec
from qim_streams.streaming.watchdog import (
    ConsumerWatch,
    LoopWatch,
    PartitionView,
    RebalanceWatch,
    StallWatch,
    Verdict,
)
from tests.unit.streaming.fakes import Died

TP0 = TP("in", 0)


def view(**changes: Any) -> PartitionView:
    values: dict[str, Any] = {
        "tp": TP0,
        "position": 10,
        "fetched": 10,
        "end": 10,
        "deliveries": 1,
        "queued": 0,
        "processed": None,
        "committed": 10,
        **changes,
    }
    return PartitionView(**values)


def run(watch: StallWatch, views: list[PartitionView]) -> list[Verdict]:
    return [watch.tick([item]) for item in views]


def test_records_without_delivery_are_a_stall() -> None:
    verdicts = run(StallWatch(8, 100, 1), [view(end=12, fetched=10)] * 12)
    reasons = [verdict.reason for verdict in verdicts]
    assert reasons[:8] == [None] * 8
    assert reasons[8] is not None
    assert "no delivery" in reasons[8]


def test_it_looks_again_before_it_judges() -> None:
    verdicts = run(StallWatch(8, 100, 1), [view(end=12)] * 9)
    assert [index for index, verdict in enumerate(verdicts) if verdict.look_again] == [4]
    assert verdicts[4].look_again == (TP0,)


def test_a_log_that_ends_with_a_hole_is_no_stall() -> None:
    """T-B3: after an aborted transaction the end is above the last record for ever."""
    verdicts = run(StallWatch(4, 100, 1), [view(end=12, fetched=12)] * 50)
    assert all(verdict.reason is None for verdict in verdicts)


@pytest.mark.parametrize(
    "idle",
    [
        {"end": 10},  # nothing to deliver
        {"end": None},  # the broker is away
        {"end": 12, "queued": 3},  # a slow handler, retries included, is not a stall of delivery
        {"end": 12, "position": None},  # not started: start_timeout_s judges that
    ],
)
def test_waiting_for_a_reason_is_no_stall(idle: dict[str, Any]) -> None:
    verdicts = run(StallWatch(4, 100, 1), [view(**idle)] * 30)
    assert all(verdict == Verdict() for verdict in verdicts)


def test_a_delivery_starts_the_count_again() -> None:
    watch = StallWatch(4, 100, 1)
    for count in range(20):
        assert run(watch, [view(end=12, deliveries=count)] * 3)[-1].reason is None


def test_acknowledged_and_not_committed_has_a_bound() -> None:
    """H10, B4: processing goes on and commits do not."""
    verdicts = run(StallWatch(100, 5, 1), [view(processed=50, committed=10, deliveries=n) for n in range(9)])
    reasons = [verdict.reason for verdict in verdicts]
    assert reasons[:5] == [None] * 5
    assert reasons[5] is not None
    assert "committed is still 10" in reasons[5]


def test_a_commit_that_advances_is_enough() -> None:
    watch = StallWatch(100, 5, 1)
    for count in range(40):
        assert watch.tick([view(processed=1000, committed=10 + count // 3)]).reason is None


def test_a_position_above_the_end_is_a_replaced_log() -> None:
    """T-B4: the topic was deleted and created again."""
    verdicts = run(StallWatch(100, 100, 1), [view(position=10, end=3)] * 6)
    assert verdicts[0].reason is None
    assert verdicts[4].reason is not None
    assert "re-created" in verdicts[4].reason


def test_a_new_assignment_forgets() -> None:
    watch = StallWatch(8, 100, 1)
    run(watch, [view(end=12)] * 6)
    watch.reset()
    assert run(watch, [view(end=12)] * 6)[-1].reason is None


def test_a_rebalance_without_progress_ends() -> None:
    watch = RebalanceWatch(5, 1)
    assert [watch.tick(True, (1, 7)) for _ in range(5)] == [None] * 5
    verdict = watch.tick(True, (1, 7))
    assert verdict is not None
    assert verdict.reason is not None


def test_a_recovery_that_advances_goes_on() -> None:
    watch = RebalanceWatch(3, 1)
    assert all(watch.tick(True, (1, left)) is None for left in range(100, 0, -1))
    assert watch.tick(False, (1, 0)) is None


def test_an_event_loop_that_stopped_turning_ends_the_process(
    exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H: a blocked loop sends no heartbeat and answers nothing; counted in looks, not by the clock."""
    monkeypatch.setattr(watchdog, "_LOOP_INTERVAL_S", 0.001)
    watch = LoopWatch(3.0)
    watch._limit = 3
    with pytest.raises(Died):
        watch._run()
    assert exits == [70]


def test_a_turning_loop_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LoopWatch(3.0)
    looks = iter([False] * 20 + [True])

    def look(_: float) -> bool:
        watch.beat()
        return next(looks)

    monkeypatch.setattr(watch._stop, "wait", look)
    watch._run()


# -- what is told about it


def test_a_partition_that_stands_still_is_frozen_long_before_it_is_a_stall() -> None:
    """E4: records, room and no delivery for five looks; it is forgotten with the next delivery."""
    watch = StallWatch(60, 100, 1)
    run(watch, [view(end=12)] * 5)
    assert watch.frozen() == []
    run(watch, [view(end=12)])
    assert watch.frozen() == [(TP0, 5)]
    run(watch, [view(end=12, deliveries=2)])
    assert watch.frozen() == []


async def test_reasons_come_from_the_last_looks() -> None:
    """Frozen, too far behind, or a broker that does not answer: each is named; a new assignment forgets."""
    consumer = FakeConsumer()
    watch = ConsumerWatch(consumer)  # type: ignore[arg-type]
    await watch.look()
    assert watch.reasons() == []
    consumer.end = 12
    for _ in range(5):
        await watch.look()
    (frozen,) = watch.reasons()
    assert frozen == "in[0] stands still for 5 s while its log grows"
    consumer.spec = replace(consumer.spec, ready_lag_s=0.000_001)
    await watch.look()
    assert any("2 records behind" in reason for reason in watch.reasons())
    consumer.end = None
    for _ in range(3):
        await watch.look()
    assert any("has not answered 3 looks" in reason for reason in watch.reasons())
    consumer.end = 12
    watch.reset()
    await watch.look()
    assert not any("stands still" in reason or "answered" in reason for reason in watch.reasons())


class FakeConsumer:
    """As much of a consumer as the watch looks at: one partition, read up to 10."""

    def __init__(self) -> None:
        self.end: int | None = 10
        self.spec = AppSpec("made-up", "127.0.0.1:1", (SourceSpec("in", 1),), Path("/tmp/made-up"))
        self.app = SimpleNamespace(
            rebalancing=False,
            tables=SimpleNamespace(recovery=SimpleNamespace(active_remaining_total=lambda: 0)),
        )
        self.flow_active, self.epoch, self.positions = True, 1, {TP0: 10}

    def assignment(self) -> set[TP]:
        return {TP0}

    def is_source(self, tp: TP) -> bool:
        return True

    async def log_ends(self, tps: object, timeout_s: float) -> dict[TP, int]:
        if self.end is None:
            raise TimeoutError
        return {TP0: self.end}

    def view(self, tp: TP, end: int | None) -> PartitionView:
        return view(end=end, processed=10)
