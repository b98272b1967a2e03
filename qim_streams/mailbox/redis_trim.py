"""Trimming by age in Redis: scripts ``trim_ages.lua`` and ``trim_aged.lua``.

Keys beside those of ``redis_store``::

    {s:k}:oldest                zset: <tenant>:<ordinal> -> mailbox_seq of the mailbox's oldest entry, or less
    {s:k}:ages                  zset: W -> milliseconds when W had reached it

The first is written by ``mailbox.lua`` with the first entry of a mailbox, and corrected here.

Spec: §5, §7.
"""

from qim_streams.mailbox.trim_ports import TrimStep
from qim_streams.redis_tier import RedisClient, Script, translated


class RedisAgedMailboxes:
    """`AgedMailboxes` on the hot tier."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._ages = Script.load("qim_streams.mailbox", "trim_ages.lua")
        self._trim = Script.load("qim_streams.mailbox", "trim_aged.lua")

    async def aged(
        self, shard: int, epoch: int, now_ms: int, covered: int, retention_ms: int, note_ms: int
    ) -> int:
        """See `AgedMailboxes.aged`."""
        keys = (f"{{s:{shard}}}:epoch", f"{{s:{shard}}}:ages")
        async with translated(f"s:{shard}", epoch):
            args = (epoch, now_ms, covered, retention_ms, note_ms)
            return int(await self._ages.call(self._client, keys, args))

    async def trim_aged(
        self, shard: int, epoch: int, up_to_seq: int, mailboxes_max: int, entries_max: int
    ) -> TrimStep:
        """See `AgedMailboxes.trim_aged`."""
        keys = (f"{{s:{shard}}}:epoch", f"{{s:{shard}}}:w", f"{{s:{shard}}}:oldest")
        async with translated(f"s:{shard}", epoch):
            args = (epoch, up_to_seq, mailboxes_max, entries_max)
            mailboxes, entries = await self._trim.call(self._client, keys, args)
        return TrimStep(mailboxes, entries, mailboxes >= mailboxes_max or entries >= entries_max)
