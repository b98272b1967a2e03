"""A bounded map that forgets what was used longest ago, by count and by weight.

Invariants: never more than `count_max` values nor more than `weight_max` of weight, whichever is hit
first; a value heavier than `weight_max` is not kept at all. Not for state: losing a value must only
cost a read.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruMap(Generic[K, V]):
    """Recently used values by key. `weight` is bytes, members, or whatever the caller counts."""

    def __init__(self, count_max: int, weight_max: int) -> None:
        if count_max < 1 or weight_max < 1:
            raise ValueError("an LruMap needs room for at least one value")
        self.count_max, self.weight_max = count_max, weight_max
        self.weight = 0
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """The value, now the most recently used one; None when it is not there."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def items(self) -> list[tuple[K, V]]:
        """All keys and values as of now, the one used longest ago first."""
        return [(key, value) for key, (value, _) in self._items.items()]

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self.weight = 0

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep `value` and drop the oldest until both bounds hold."""
        before = self._items.pop(key, None)
        if before is not None:
            self.weight -= before[1]
        if weight > self.weight_max:
            return
        self._items[key] = (value, weight)
        self.weight += weight
        while len(self._items) > self.count_max or self.weight > self.weight_max:
            _, (_, gone) = self._items.popitem(last=False)
            self.weight -= gone
