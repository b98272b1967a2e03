"""Samples W of every shard while a test runs: a lane that goes back is a broken promise.

A thread of its own, so that neither the load nor a store that hangs disturbs it; what cannot be read is
skipped and counted.

Spec: §5 (W is a proof). Invariant I6.
"""

import redis

from qim_streams.errors import RecordError
from tests.support.checkers import went_back
from tests.support.logs import HotTier
from tests.support.looking import Looking

EVERY_S = 0.05


class WatermarkSampler(Looking):
    """`violations` has a sentence per lane that was seen to go back."""

    def __init__(self, redis_url: str) -> None:
        super().__init__("watermark sampler", EVERY_S)
        self._tier = HotTier(redis_url)
        self.violations: list[str] = []
        self.samples = self.skipped = 0
        self.highest: dict[int, tuple[int, ...]] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._tier.close()

    def look(self) -> None:
        """W of every shard, against the highest that was seen."""
        try:
            self._take(self._tier.watermarks())
        except (redis.RedisError, OSError):
            self.skipped += 1
        except RecordError as error:
            self.violations.append(f"I6: {error}")

    def _take(self, found: dict[int, tuple[int, ...]]) -> None:
        self.samples += 1
        for shard, before in self.highest.items():
            self.violations += went_back(shard, before, found.get(shard, ()))
        self.highest.update(found)
