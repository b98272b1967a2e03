"""Each checker over logs and samples passes a good dump and rejects one with exactly its violation.

I1 I2 I3 I5 I11 have theirs in ``tests/unit/testing/test_oracle.py``; I4 I6 I8 P2 over the histories of
clients in ``test_evidence.py``. Here: I6 I7 I9 I10 I12 I13 I14 I15 I16 I17 I18.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from qim_streams import ids, placement
from tests.support import checkers
from tests.support.checkers import (
    CommitSample,
    CursorAnswer,
    DispatchRow,
    FanoutSample,
    Letter,
    OutboxRow,
    ShardSample,
)
from tests.unit.testing import test_oracle


def message(number: int) -> bytes:
    return number.to_bytes(16, "big")


def dispatch(number: int, shard: int, offset: int, **changed: Any) -> DispatchRow:
    made = checkers.dispatch_id_of(message(number), shard)
    good = DispatchRow(shard, offset, shard, made, message(number), number, ("c", number), b"%d" % number)
    return good._replace(**changed)


def outbox(number: int, epoch: int = 1, fence: int = 1, partition: int = 0) -> OutboxRow:
    return OutboxRow(partition, number, epoch, fence, message(number), f"k{number}", b"raw")


# two messages: 1 for shards 0 and 1, 2 for shard 1; the dispatch of 1 for shard 0 is there twice
WANTED = {message(1): frozenset({0, 1}), message(2): frozenset({1})}
ROWS = [dispatch(1, 0, 0), dispatch(1, 1, 0), dispatch(1, 0, 1), dispatch(2, 1, 1)]
LOG = [outbox(1), outbox(2), outbox(3, epoch=1, fence=2)]  # 3 lies behind a newer owner's barrier
LANES = (5, 5, 7)
SAMPLES = [
    ShardSample(0, 1, 1, (1, 1)),
    ShardSample(0, 2, 1, (2, 2)),  # moved before the grant was seen
    ShardSample(0, 2, 2, (3, 2)),
]
POISON = {("t", 0, 4): b"bad", ("t", 1, 2): b"worse"}
READERS = {"t": ("a", "b")}
LETTERS = [Letter(role, at, value) for at, value in POISON.items() for role in ("a", "b")]
SAID = {("c", 5), ("d", 9), ("e", 1)}  # ann is not in e
LIST: tuple[Any, ...] = ("ann", {"c": 5, "d": 9}, frozenset(), {"c": 5, "d": 9}, SAID)
ANSWERS = [
    CursorAnswer("ann", 4, 1, -1, 1, "AUTH_OK"),
    CursorAnswer("ann", 4, 1, -1, 2, "CURSOR_REBASED"),
    CursorAnswer("ann", 4, 1, 5, 2, "CURSOR_EXPIRED"),
]
FIRST_ENDS = FanoutSample(0, 3, {0: 1, 1: 2})
MARKS = {"main": b"run.", "twin": b"twin|"}
BODIES = [("main", "ann", b"run.1"), ("twin", "ann", b"twin|1")]
PEAKS, BOUNDS = {"writer": {"MB": 90.0}}, {"MB": 100.0}

Case = tuple[Callable[..., list[str]], tuple[Any, ...], dict[str, Any]]

GOOD: dict[str, Case] = {
    "I6": (checkers.went_back, (0, LANES, (5, 6, 7)), {}),
    "I7": (checkers.undrained, ({0: (9, 9), 1: (3, 4)}, {0: 10, 1: 4, 2: 0}), {}),
    "I9": (checkers.answers_are_explicit, (ANSWERS,), {}),
    "I10": (checkers.dispatches_are_determined, (ROWS, WANTED), {}),
    "I12-archive": (checkers.archive_is_outbox, ({1: b"x", 2: b"y"}, {1: b"x"}), {}),
    "I12-trim": (checkers.trimmed_only_archived, ({"c": (6, 5), "d": (1, 0)},), {}),
    "I13": (checkers.list_differs, LIST, {}),
    "I14-log": (checkers.left_out_has_no_effect, (LOG, set(WANTED), {"k1": message(1)}), {}),
    "I14-store": (checkers.written_under_the_newest, (SAMPLES,), {}),
    "I15": (checkers.letters_are_the_poison, (POISON, READERS, LETTERS), {}),
    "I16": (checkers.isolated, (BODIES, MARKS), {}),
    "I17-store": (checkers.commits_follow_effects, ([CommitSample("g", 0, 5, 4)],), {}),
    "I17-fanout": (checkers.fanout_follows_effects, ([FIRST_ENDS], LOG, ROWS), {}),
    "I18": (checkers.within_bounds, (PEAKS, BOUNDS), {}),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_dump_has_no_violation(name: str) -> None:
    check, arguments, named = GOOD[name]
    assert check(*arguments, **named) == []


BAD: list[Any] = [
    pytest.param("I6", 2, (5, 4, 7), "went back", id="I6-one-lane"),
    pytest.param("I6", 2, (), "went back", id="I6-gone"),
    pytest.param("I7", 0, {0: (9, 8)}, "the log ends at 9", id="I7-one-lane-behind"),
    pytest.param("I7", 0, {1: (3, 3)}, "W of shard 0 is -1", id="I7-nothing"),
    pytest.param("I9", 0, [ANSWERS[0]._replace(trim=5)], "not CURSOR_EXPIRED", id="I9-silent-hole"),
    pytest.param("I9", 0, [ANSWERS[0]._replace(granted=2)], "not CURSOR_REBASED", id="I9-old-epoch"),
    pytest.param("I9", 0, [ANSWERS[0]._replace(answer="CURSOR_EXPIRED")], "not AUTH_OK", id="I9-for-nothing"),
    pytest.param("I9", 0, [ANSWERS[2]._replace(answer="CURSOR_REBASED")], "not CURSOR_EXP", id="I9-order"),
    pytest.param("I10", 0, ROWS[1:2] + ROWS[3:], "dispatched to [1]", id="I10-missing"),
    pytest.param("I10", 0, [*ROWS, dispatch(2, 0, 2)], "dispatched to [0, 1]", id="I10-too-many"),
    pytest.param("I10", 0, [*ROWS, dispatch(1, 0, 2, raw=b"?")], "other bytes", id="I10-bytes"),
    pytest.param(
        "I10",
        0,
        [*ROWS, dispatch(1, 0, 2, outbox_offset=9, raw=b"?", content=("d",))],
        "another content",
        id="I10-content-of-a-copy",
    ),
    pytest.param("I10", 0, [*ROWS, dispatch(7, 0, 2)], "no message", id="I10-stranger"),
    pytest.param("I10", 0, [*ROWS, dispatch(1, 0, 2, dispatch_id=b"x" * 16)], "another id", id="I10-id"),
    pytest.param("I10", 0, [*ROWS, dispatch(1, 1, 2)._replace(shard=0)], "another shard", id="I10-misplaced"),
    pytest.param("I12-archive", 0, {}, "not in the archive", id="I12-missing"),
    pytest.param("I12-archive", 0, {1: b"y"}, "not in the archive", id="I12-other-bytes"),
    pytest.param("I12-trim", 0, {"c": (7, 5)}, "the archive ends at 5", id="I12-trimmed-unarchived"),
    pytest.param("I13", 1, {"c": 5}, "has d at None", id="I13-missing"),
    pytest.param("I13", 1, {"c": 5, "d": 9, "e": 1}, "has e at 1", id="I13-phantom"),
    pytest.param("I13", 1, {"c": 4, "d": 9}, "has c at 4", id="I13-old"),
    pytest.param("I14-log", 1, {*WANTED, message(3)}, "was dispatched", id="I14-dispatched"),
    pytest.param("I14-log", 2, {"k3": message(3)}, "was acknowledged", id="I14-acknowledged"),
    pytest.param(
        "I14-store", 0, [*SAMPLES, ShardSample(0, 2, 1, (4, 4))], "moved under epoch 1", id="I14-zombie"
    ),
    pytest.param(
        "I14-store", 0, [*SAMPLES, ShardSample(0, 1, 2, (3, 2))], "granted 2 and later 1", id="I14-epoch-back"
    ),
    pytest.param("I15", 2, LETTERS[1:], "did not set", id="I15-lost"),
    pytest.param("I15", 2, [*LETTERS, LETTERS[0]], "2 times", id="I15-twice"),
    pytest.param("I15", 2, [*LETTERS, Letter("a", ("t", 9, 9), b"")], "is no poison", id="I15-good-one"),
    pytest.param(
        "I15", 2, [LETTERS[0]._replace(value=b"ba"), *LETTERS[1:]], "with other bytes", id="I15-bytes"
    ),
    pytest.param("I16", 0, [("main", "ann", b"a twin|1")], "something of twin", id="I16-crossed"),
    pytest.param("I17-store", 0, [CommitSample("g", 0, 6, 4)], "committed 6", id="I17-store"),
    pytest.param(
        "I17-fanout", 0, [FIRST_ENDS._replace(ends={0: 0, 1: 2})], "was in [0]", id="I17-fanout-one-shard"
    ),
    pytest.param("I17-fanout", 2, ROWS[:3], "was in any shard", id="I17-fanout-never"),
    pytest.param("I18", 0, {"writer": {"MB": 101.0}}, "came to 101 MB", id="I18-memory"),
]


@pytest.mark.parametrize(("name", "index", "spoilt", "says"), BAD)
def test_a_bad_dump_is_rejected(name: str, index: int, spoilt: object, says: str) -> None:
    """One argument of the good call is spoilt; the checker names what is wrong and its invariant."""
    check, arguments, named = GOOD[name]
    spoilt_call = [*arguments[:index], spoilt, *arguments[index + 1 :]]
    found = check(*spoilt_call, **named)
    assert any(says in text for text in found), found
    assert all(text.startswith(f"{name.partition('-')[0]}: ") for text in found)


def test_every_checker_is_proved_by_a_bad_dump() -> None:
    """No check without a test that it can fail; every invariant has one somewhere."""
    formulas = {checkers.shard_of, checkers.dispatch_id_of, checkers.event_id_of}
    checks = {
        one
        for _, one in inspect.getmembers(checkers, inspect.isfunction)
        if one.__module__ == checkers.__name__
    }
    proved = {param.values[0] for param in BAD}
    assert {GOOD[name][0] for name in proved} == checks - formulas
    here = {param.id.partition("-")[0] for param in BAD}
    histories = {param.id.partition("-")[0] for param in test_oracle.BAD}
    assert here | histories | {"I4", "I8"} == {f"I{number}" for number in range(1, 19)}


def test_a_death_may_repeat_a_letter() -> None:
    check, arguments, _ = GOOD["I15"]
    assert check(*arguments[:2], [*LETTERS, LETTERS[0]], once=False) == []


def test_late_rows_of_a_wide_conversation_and_joins_are_right() -> None:
    """I13: the head has the time of a wide row; a time that is no message's is that of a join."""
    assert checkers.list_differs("ann", {"c": 4}, {"c"}, {"c": 5}, {("c", 4), ("c", 5)}) == []
    assert checkers.list_differs("ann", {"c": 7}, frozenset(), {"c": 5}, {("c", 5)}) == []


def test_the_formulas_are_those_of_the_product() -> None:
    """Written twice on purpose; equal, or one of them is not what the contract says."""
    for number in range(50):
        user = f"user-{number}"
        assert checkers.shard_of("t", user, 7) == placement.mailbox_shard("t", user, 7)
        assert checkers.dispatch_id_of(message(number), number) == ids.dispatch_id(message(number), number)
        assert checkers.event_id_of(message(number), user) == ids.event_id(message(number), user)
