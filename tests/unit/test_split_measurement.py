"""What needs no server of ``tests.perf.shard_split``: options, the gap, and what is called wrong."""

import pytest

from tests.perf import shard_split
from tests.perf.storm_load import Part

CLEAN = {"clean": True, "gap_ms": 1_900.0, "restarts": 0, "wrong": {"lost": 0}}


def part(name: str, ack: float, e2e: float) -> Part:
    return Part(name, 10, 1_000, {"max": ack}, {"max": e2e})


def test_the_gap_is_the_longest_wait_of_anybody_from_the_split_on():
    parts = [part("before", 9_000.0, 9_000.0), part("during", 40.0, 700.0), part("after", 800.0, 60.0)]
    assert shard_split.gap_ms(parts) == 800.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clean": False}, "once and in order"),
        ({"gap_ms": 2_100.0}, "2,100 ms"),
        ({"restarts": 1}, "1 roles"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(changed, said):
    assert shard_split.problems(CLEAN, 2.0) == []
    (only,) = shard_split.problems(CLEAN | changed, 2.0)
    assert said in only


def test_there_is_room_for_every_split():
    _, asked, options = shard_split.parse(
        ["--shards", "4", "--splits", "2", "--before", "7", "--during", "20"]
    )
    assert shard_split.environment(asked) == {
        "QIM_MAILBOX_SHARDS": "4",
        "QIM_MAILBOX_SHARDS_MAX": "16",
        "QIM_OUTBOX_PARTITIONS": "8",
    }
    assert options.duration_s == asked.load_s == 37


@pytest.mark.parametrize("argv", [["--splits", "0"], ["--shards", "200"], ["--before", "0"], ["--rate", "0"]])
def test_what_cannot_be_measured_is_refused(argv):
    with pytest.raises(SystemExit) as ended:
        shard_split.parse(argv)
    assert ended.value.code == 2
