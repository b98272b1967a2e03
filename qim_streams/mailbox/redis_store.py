"""Mailboxes in Redis: one stream per user, one hash per shard for the watermark.

Keys (all of a shard in one slot, hash tag ``{s:k}``)::

    {s:k}:epoch                 epoch of the shard's owner, written by the lease store
    {s:k}:w                     hash: w packed watermark, epoch of its last writer, open, steps; after a
                                loss promised (how far W has been) and floor (trim of everybody)
    {s:k}:mb:<tenant>:<ordinal> stream: id <mailbox_seq + 1>-<event_ordinal + 1>, field e
    {s:k}:trim:<tenant>         hash: ordinal -> effective trim

The id is one higher than the address because Redis refuses 0-0. This module decides nothing: the rules
are in ``mailbox.lua`` (and in ``watermark``). A mailbox over `mailbox_entries_max` is trimmed by the
write that makes it so.

Spec: §5, §14.6.
"""

import struct
import sys
from array import array
from collections.abc import Sequence

import msgpack

from qim_streams.command_pipe import CommandPipe
from qim_streams.errors import Outcome, StoreError
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.entries import check_size
from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.ports import EntryGroup, StoredEntry, Stretch, WatermarkState
from qim_streams.mailbox.watermark import Marks
from qim_streams.redis_tier import RedisClient, Script, translated, type_args
from qim_streams.script_pipe import ScriptPipe

_ID_OFFSET = 1
_FIELD = b"e"
_STATE = ("w", "epoch", "open", "steps", "promised")
_U32 = struct.Struct("<I")


class RedisMailboxStore:
    """`MailboxStore` on the hot tier. Holds no state of its own; safe to share in one event loop."""

    def __init__(self, client: RedisClient, *, mailbox_entries_max: int = 0) -> None:
        self._client, self._pipe, self._reads = client, ScriptPipe(client), CommandPipe(client)
        self._bound = mailbox_entries_max
        self._write = Script.load("qim_streams.mailbox", "mailbox.lua")
        self._trim = Script.load("qim_streams.mailbox", "trim.lua")
        self._promise = Script.load("qim_streams.mailbox", "promise.lua")

    async def write_step(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: Marks, record: str, step: int
    ) -> int:
        """See `MailboxStore.write_step`."""
        if not record:
            raise ValueError("a step belongs to a record")
        _, steps = await self._call(shard, epoch, groups, rule.packed(expected), b"", record, step)
        return steps

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        *,
        record: str = "",
        steps: int = 0,
    ) -> Marks:
        """See `MailboxStore.write_and_advance`."""
        rule.check_advance(expected, observed)
        before, after = rule.packed(expected), rule.packed(observed)
        lanes, _ = await self._call(shard, epoch, groups, before, after, record, steps)
        return observed if lanes == after else rule.marks(rule.unpack(lanes))

    async def _call(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        before: bytes,
        after: bytes,
        record: str,
        count: int,
    ) -> tuple[bytes, int]:
        check_size(groups)
        # The Lua library of Redis reads the old raw type only, not bin.
        packed = msgpack.packb([_packed(group) for group in groups], use_bin_type=False)
        keys = (f"{{s:{shard}}}:epoch", f"{{s:{shard}}}:w")
        args = (epoch, before, after, record, count, self._bound, packed)
        async with translated(f"s:{shard}", epoch):
            lanes, steps = await self._pipe.call(self._write, keys, args)
        return bytes(lanes), int(steps)

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """See `MailboxStore.watermarks`."""
        async with translated("mailbox watermarks"):
            rows = await self._reads.run(*[("HMGET", f"{{s:{shard}}}:w", *_STATE) for shard in shards])
        return [_state(row) for row in rows]

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxStore.watermark`."""
        return (await self.watermarks([shard]))[0]

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxStore.read`."""
        if limit < 1 or up_to_seq <= after_seq:
            return []
        key, first, last = _range(shard, tenant_id, ordinal, after_seq, up_to_seq)
        async with translated(f"s:{shard}"):
            (rows,) = await self._reads.run(("XRANGE", key, first, last, "COUNT", limit))
        return [_entry(row_id, fields) for row_id, fields in rows]

    async def anything(self, stretches: Sequence[Stretch]) -> list[bool]:
        """See `MailboxStore.anything`."""
        if not stretches:
            return []
        shards = list({one.shard for one in stretches})
        commands: list[tuple[type_args, ...]] = []
        for one in stretches:  # the trim after the rows: what was whole when it was read, is whole
            commands.append(("XRANGE", *_range(*one), "COUNT", 1))
            commands.append(("HGET", f"{{s:{one.shard}}}:trim:{one.tenant_id}", one.ordinal))
        commands += [("HGET", f"{{s:{shard}}}:w", "floor") for shard in shards]
        async with translated("mailboxes"):
            answers = await self._reads.run(*commands)
        end = 2 * len(stretches)
        floors = dict(zip(shards, answers[end:], strict=True))
        return [
            bool(rows)
            or max(int(trim or rule.NOTHING), int(floors[one.shard] or rule.NOTHING)) > one.after_seq
            for one, rows, trim in zip(stretches, answers[:end:2], answers[1:end:2], strict=True)
        ]

    async def trim(self, shard: int, epoch: int, tenant_id: str, ordinal: int, up_to_seq: int) -> int:
        """See `MailboxStore.trim`."""
        tag = f"{{s:{shard}}}"
        keys = (f"{tag}:epoch", f"{tag}:trim:{tenant_id}", f"{tag}:mb:{tenant_id}:{ordinal}")
        args = (epoch, ordinal, up_to_seq, f"{up_to_seq + 1 + _ID_OFFSET}-0")
        async with translated(f"s:{shard}", epoch):
            return int(await self._trim.call(self._client, keys, args))

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """See `MailboxStore.trim_watermark`."""
        trim = ("HGET", f"{{s:{shard}}}:trim:{tenant_id}", ordinal)
        async with translated(f"s:{shard}"):
            values = await self._reads.run(trim, ("HGET", f"{{s:{shard}}}:w", "floor"))
        return max((int(value) for value in values if value is not None), default=rule.NOTHING)

    async def promise(
        self, shard: int, epoch: int, promised: int, lost_through: int, kept: KeptPositions | None = None
    ) -> None:
        """See `MailboxStore.promise`."""
        keys = [f"{{s:{shard}}}:{what}" for what in ("epoch", "w", "epochs")]
        args = (epoch, promised, lost_through, b"" if kept is None else kept.encode())
        async with translated(f"s:{shard}", epoch):
            await self._promise.call(self._client, keys, args)


def _range(shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int) -> tuple[str, str, str]:
    """Key, first and last id of (after_seq, up_to_seq]."""
    # An end without a second part means "with every event_ordinal".
    first, last = f"{max(after_seq, -1) + 1 + _ID_OFFSET}-0", str(up_to_seq + _ID_OFFSET)
    return f"{{s:{shard}}}:mb:{tenant_id}:{ordinal}", first, last


def _packed(group: EntryGroup) -> tuple[str, str, bytes, bytes]:
    tenant_id, mailbox_seq, event_ordinal, value, ordinals = group
    if len(ordinals) == 1:
        members = _U32.pack(ordinals[0])
    elif isinstance(ordinals, array) and ordinals.typecode == "I" and sys.byteorder == "little":
        members = ordinals.tobytes()
    else:
        members = struct.pack(f"<{len(ordinals)}I", *ordinals)
    return tenant_id, f"{mailbox_seq + _ID_OFFSET}-{event_ordinal + _ID_OFFSET}", value, members


def _state(row: list[bytes | None]) -> WatermarkState:
    packed, epoch, record, steps, promised = row
    return WatermarkState(
        epoch=int(epoch or 0),
        lanes=rule.unpack(packed or rule.NOTHING_PACKED),
        open_record=(record or b"").decode(),
        open_steps=int(steps or 0),
        promised=rule.NOTHING if promised is None else int(promised),
    )


def _entry(row_id: bytes, fields: Sequence[bytes]) -> StoredEntry:
    seq, ordinal = row_id.split(b"-")
    value = fields[1] if fields[0] == _FIELD else None
    if value is None:
        raise StoreError(f"mailbox entry {row_id.decode()} has no value", Outcome.NOT_APPLIED)
    return StoredEntry(int(seq) - _ID_OFFSET, int(ordinal) - _ID_OFFSET, bytes(value))
