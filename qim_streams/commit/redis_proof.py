"""`Proof` on Redis: ``{ob:p}:whole``, the run of the server for which the partition is whole.

Spec: §14.4.
"""

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls


class RedisProof:
    """`Proof` on Redis: ``{ob:p}:whole``."""

    def __init__(self, calls: PartitionCalls) -> None:
        self._calls = calls
        self._script = keys.fenced_script("qim_streams.commit", "whole.lua")

    async def prove(self, partition: int, epoch: int) -> None:
        """See the port."""
        await self._calls.numbered(self._script, partition, epoch, "whole", ())
