"""T-M5, T-X8, E8: the verdict is total, deterministic and in the contract's order."""

from itertools import product

import pytest

from qim_streams.sync.cursor import Cursor
from qim_streams.sync.verdict import Expired, Invalid, Ok, Rebased, ShardPosition, judge, refusal

W, TRIM, EPOCH, SHARD = 100, 40, 5, 3
HERE = ShardPosition(SHARD, EPOCH, W, TRIM)
POSITIONS = (-2, -1, 0, TRIM - 1, TRIM, TRIM + 1, W - 1, W, W + 1, 2**53)
EPOCHS = (0, EPOCH - 1, EPOCH, EPOCH + 1)
BOUNDARIES = (None, -1, TRIM - 1, TRIM, 70, W, 2**53)


def expected(cursor: Cursor | None, boundary: int | None) -> str:
    """The contract's table, written as one sentence per step."""
    bad = cursor is None or cursor.shard != SHARD or cursor.shard_epoch > EPOCH
    if bad or cursor is None or not -1 <= cursor.last_applied <= W:
        return "Invalid"
    if cursor.last_applied < TRIM:
        return "Expired"
    if cursor.shard_epoch < EPOCH:
        return "Rebased" if boundary is not None else "Expired"
    return "Ok"


def test_all_combinations() -> None:
    """Signature, shard, position, epoch and boundary, each with each."""
    cases = [None, *(Cursor(s, e, p) for s, e, p in product((SHARD, SHARD + 1), EPOCHS, POSITIONS))]
    seen = set()
    for cursor, boundary in product(cases, BOUNDARIES):
        verdict = judge(cursor, HERE, boundary)
        assert type(verdict).__name__ == expected(cursor, boundary), (cursor, boundary)
        assert judge(cursor, HERE, boundary) == verdict
        seen.add(type(verdict).__name__)
        if isinstance(verdict, Rebased):
            assert cursor is not None
            assert boundary is not None
            assert verdict.last_applied == max(-1, min(cursor.last_applied, boundary))
            assert verdict.replay_from_seq == verdict.last_applied + 1
        if isinstance(verdict, Ok):
            assert cursor is not None
            assert verdict.after_seq == cursor.last_applied
    assert seen == {"Ok", "Invalid", "Expired", "Rebased"}


@pytest.mark.parametrize(
    ("position", "epoch", "name"),
    [
        (TRIM - 1, EPOCH, "Expired"),
        (TRIM, EPOCH, "Ok"),
        (W, EPOCH, "Ok"),
        (W + 1, EPOCH, "Invalid"),
        (W, EPOCH - 1, "Rebased"),
        (W, EPOCH + 1, "Invalid"),
    ],
)
def test_edges(position: int, epoch: int, name: str) -> None:
    """T-X8: at trim, below it, at W, above it, older and newer epoch."""
    assert type(judge(Cursor(SHARD, epoch, position), HERE, 2**53)).__name__ == name


def test_an_untouched_mailbox_accepts_minus_one() -> None:
    """Nothing written, nothing trimmed: the cursor that covers nothing is good."""
    empty = ShardPosition(SHARD, 0, -1, -1)
    assert judge(Cursor(SHARD, 0, -1), empty, None) == Ok(-1)


def test_refusals_carry_the_verdict_fields() -> None:
    """CURSOR_EXPIRED tells the client to rebuild."""
    assert refusal(Expired("x")).fields == {"rebuild_required": True}
    assert refusal(Invalid("x")).code == "CURSOR_INVALID"
