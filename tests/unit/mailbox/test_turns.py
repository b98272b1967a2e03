"""The line of low slices: one at a time, in order, not beside batches, and never for ever. Spec: §13."""

from qim_streams.mailbox.turns import LowTurns


def test_one_at_a_time_in_the_order_in_which_they_asked() -> None:
    turns = LowTurns(0.05)
    assert turns.take(1, 0.0)
    assert not turns.take(2, 0.0)
    assert not turns.take(3, 0.0)
    assert not turns.take(1, 0.0), "asks again before the others"
    turns.done(0.1)
    assert turns.first == 2
    assert not turns.take(3, 0.1)
    assert turns.take(2, 0.1)
    turns.done(0.2)
    assert turns.take(3, 0.2)
    turns.done(0.3)
    assert turns.take(1, 0.3)


def test_it_gives_way_to_batches_but_not_for_ever() -> None:
    turns = LowTurns(0.05)
    turns.batches = 1
    assert not turns.take(1, 10.0)
    assert turns.due_s(1) == 10.05
    assert not turns.take(1, 10.049)
    assert turns.take(1, 10.05)
    turns.done(10.06)
    assert not turns.take(1, 10.06), "a rest after each, however long the others have waited"
    assert turns.due_s(1) == 10.06 + 0.05
    turns.batches = 0
    assert turns.take(1, 10.061)


def test_who_has_something_urgent_stops_nobody() -> None:
    turns = LowTurns(0.05)
    turns.batches = 1
    assert not turns.take(1, 0.0)
    assert not turns.take(2, 0.01)
    turns.leave(1)
    turns.leave(1)
    assert turns.first == 2
    assert turns.take(2, 0.07)
    assert turns.due_s(2) is None, "it writes"
    assert turns.due_s(1) is None, "it does not wait"
    assert not turns.take(1, 0.08)
    assert turns.first is None
    turns.done(0.09)
    assert turns.first == 1
