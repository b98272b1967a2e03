"""Numbered calls: what makes it safe to repeat a write of a partition whose outcome is unknown.

Every commit and membership change of an epoch carries a number above all before it, and the number of the
last one known to be applied (``fence.lua``). Therefore

* a call that was given up after a timeout and reaches the store late is refused, once a later call was
  answered: it cannot slip a message in between, behind the writer's back;
* a store that forgot an acknowledged call (a restart that lost its last second) says so at the next one.

Invariants: one numbered call per partition at a time; numbers only grow within an epoch.

Spec: §14.3, §14.4, §14.6.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import exceptions as redis_errors

from qim_streams.commit import keys
from qim_streams.errors import InvariantViolation
from qim_streams.redis_tier import Script, translate, type_args
from qim_streams.script_pipe import ScriptPipe

GRANTS_KEPT = 4  # of a partition in one process
STALE, ROLLED_BACK = "STALE_CALL", "ROLLED_BACK"


@dataclass(slots=True)
class _Numbers:
    applied: int = 0
    issued: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PartitionCalls:
    """The scripts of the partitions that this process owns. Shared by all stores of the process."""

    def __init__(self, pipe: ScriptPipe) -> None:
        self._pipe = pipe
        self._numbers: dict[int, dict[int, _Numbers]] = {}  # partition -> epoch -> numbers

    async def numbered(
        self, script: Script, partition: int, epoch: int, key: str, args: Sequence[type_args]
    ) -> Any:
        """The answer of a script with KEYS epoch, call, `key` and ARGV epoch, applied, number, `args`.

        FencedError, StoreError; InvariantViolation when the store has lost an acknowledged call.
        """
        numbers = self._of(partition, epoch)
        async with numbers.turn:
            numbers.issued += 1
            base = keys.base(partition)
            answer = await self._call(
                script,
                partition,
                epoch,
                (base + "epoch", base + "call", base + key),
                (epoch, numbers.applied, numbers.issued, *args),
            )
            numbers.applied = numbers.issued
            return answer

    async def fenced(
        self, script: Script, partition: int, epoch: int, names: Sequence[str], args: Sequence[type_args] = ()
    ) -> Any:
        """The answer of a script with KEYS epoch, `names` and ARGV epoch, `args`; harmless when late."""
        base = keys.base(partition)
        wanted = (base + "epoch", *(base + name for name in names))
        return await self._call(script, partition, epoch, wanted, (epoch, *args))

    async def read(self, script: Script, partition: int, args: Sequence[type_args]) -> Any:
        """The answer of a reading script with one key that names the slot."""
        return await self._call(script, partition, 0, (keys.base(partition) + "epoch",), args)

    def _of(self, partition: int, epoch: int) -> _Numbers:
        # Late work of a grant that this process had before must not take the present one's numbers.
        grants = self._numbers.setdefault(partition, {})
        numbers = grants.get(epoch)
        if numbers is None:
            numbers = grants[epoch] = _Numbers()
            if len(grants) > GRANTS_KEPT:
                del grants[next(iter(grants))]
        return numbers

    async def _call(
        self, script: Script, partition: int, epoch: int, names: Sequence[str], args: Sequence[type_args]
    ) -> Any:
        try:
            return await self._pipe.call(script, names, args)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            text = str(error)
            if ROLLED_BACK in text:
                raise InvariantViolation(
                    f"ob:{partition}: the hot tier has lost writes that it had acknowledged (restart?)"
                ) from error
            if STALE in text:
                raise InvariantViolation(f"ob:{partition}: two calls of one owner overlap") from error
            raise translate(error, f"ob:{partition}", epoch) from error
