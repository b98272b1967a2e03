"""The bounded map."""

import pytest

from qim_streams.lru import LruMap


def test_the_oldest_goes_first_and_use_makes_young() -> None:
    cache: LruMap[str, int] = LruMap(2, 100)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert len(cache) == 2
    assert "c" in cache


def test_weight_is_bounded_and_replaced_values_give_theirs_back() -> None:
    cache: LruMap[str, str] = LruMap(10, 10)
    cache.put("a", "x", 6)
    cache.put("a", "y", 4)
    cache.put("b", "z", 6)
    assert (cache.weight, cache.get("a"), cache.get("b")) == (10, "y", "z")
    cache.put("c", "w", 3)
    assert (cache.weight, cache.get("a"), cache.get("b")) == (9, None, "z")  # a was used longer ago than b


def test_a_value_over_the_bound_is_not_kept() -> None:
    cache: LruMap[str, str] = LruMap(10, 10)
    cache.put("a", "old", 1)
    cache.put("a", "huge", 11)
    assert cache.get("a") is None
    assert cache.weight == 0
    with pytest.raises(ValueError, match="room"):
        LruMap(0, 1)
