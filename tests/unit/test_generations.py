"""A bounded memory for hot paths: what was updated last is known, what was updated longest ago goes."""

from qim_streams.generations import Generations


def test_the_last_number_counts_and_nothing_else_is_known() -> None:
    known: Generations[str] = Generations(10)
    known.update({"a": 1, "b": 2})
    known.update({"a": 3})
    assert (known.get("a"), known.get("b"), known.get("c"), len(known)) == (3, 2, None, 2)


def test_what_was_updated_longest_ago_goes_first() -> None:
    known: Generations[int] = Generations(10)
    for number in range(100):
        known.update({number: number, 0: number})
        assert len(known) <= 10
        assert known.get(number) == number
        assert known.get(0) == number, "whatever is updated all the time stays"
    assert known.get(50) is None


def test_an_update_that_is_too_large_is_kept_until_the_next_ones() -> None:
    known: Generations[int] = Generations(10)
    known.update(dict.fromkeys(range(1_000), 7))
    assert known.get(999) == 7
    known.update(dict.fromkeys(range(1_000, 1_005), 8))
    assert known.get(999) is None
    assert known.get(1_004) == 8
