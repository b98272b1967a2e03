"""Samples W of every shard while a test runs: a lane that goes back is a broken promise.

A thread of its own, so that neither the load nor a store that hangs disturbs it; what cannot be read is
skipped and counted.

Spec: §5 (W is a proof). Invariant I6.
"""

import threading
from contextlib import closing
from typing import Self

import redis

from qim_streams.errors import RecordError
from tests.support.checkers import went_back
from tests.support.logs import HotTier

EVERY_S = 0.05


class WatermarkSampler:
    """`violations` has a sentence per lane that was seen to go back."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watermark sampler")
        self.violations: list[str] = []
        self.samples = self.skipped = 0
        self.highest: dict[int, tuple[int, ...]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        with closing(HotTier(self._url)) as tier:
            while not self._stop.wait(EVERY_S):
                try:
                    self._take(tier.watermarks())
                except (redis.RedisError, OSError):
                    self.skipped += 1
                except RecordError as error:
                    self.violations.append(f"I6: {error}")

    def _take(self, found: dict[int, tuple[int, ...]]) -> None:
        self.samples += 1
        for shard, before in self.highest.items():
            self.violations += went_back(shard, before, found.get(shard, ()))
        self.highest.update(found)
