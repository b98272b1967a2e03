"""A bounded memory of numbers by key, for hot paths: two dictionaries; the younger full, the older goes.

A look-up costs one or two dictionary reads and an update none that a plain dictionary would not, where an LRU
pays for the order at each use. What it forgets is what was updated longest ago, whoever has read it.

Invariants: what was updated last is remembered; never more than `count_max` keys and what one update brings.
Not for state: losing a number must only cost a read.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Generations(Generic[K]):
    """Numbers by key."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, count_max: int) -> None:
        self._half = max(1, count_max // 2)
        self._young: dict[K, int] = {}
        self._old: dict[K, int] = {}

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._young.keys() | self._old.keys())

    def get(self, key: K) -> int | None:
        """The number of `key`, None when it is not known."""
        number = self._young.get(key)
        return self._old.get(key) if number is None else number

    def update(self, values: dict[K, int]) -> None:
        """Remember `values`, and forget what is oldest."""
        self._young.update(values)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
