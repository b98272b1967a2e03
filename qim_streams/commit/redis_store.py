"""The conversation store on Redis (key table: `keys`).

Invariants: a call is one script execution per `GROUP_MAX` messages, hence atomic per slice; requests cross
as one msgpack argument, results as one string of 47 bytes each. Decides nothing: the rule is in the
script, and in Python in `rules`.

Spec: §3, §14.3, §14.5.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence

import msgpack

from qim_streams import limits
from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.ports import (
    NOTHING_CONFIRMED,
    NOTHING_COVERED,
    CommitRequest,
    CommitResult,
    CommitStatus,
    Confirmed,
    Covered,
    PendingMessage,
)
from qim_streams.commit.rules import NO_ID, reservation_of
from qim_streams.errors import InvariantViolation
from qim_streams.ids import ID_BYTES
from qim_streams.operations.rules import NO_REVISION, operation_of, revision_of
from qim_streams.records import MessageRecord
from qim_streams.redis_tier import Script

GROUP_MAX = 512  # messages in one script call: about 5 ms of the server
CONFIRM_MAX = 4_000
_FIXED = struct.Struct(">16s16sQB")
_RESULT = struct.Struct(">B16sQQQIH")
_NUMBERS = struct.Struct(">QQQ")  # seq, membership version, committed_at
_REVISION = struct.Struct(">H")
_STATUS = {int(status): status for status in CommitStatus}


class RedisConversationStore:
    """`ConversationStore` on Redis. `partition_of(tenant, conversation)` finds the slot of a read."""

    def __init__(
        self, calls: PartitionCalls, dedup_retention_s: int, partition_of: Callable[[str, str], int]
    ) -> None:
        self._calls = calls
        self._retention_ms = dedup_retention_s * 1_000
        self._partition_of = partition_of
        self._commit = keys.fenced_script("qim_streams.commit", "operations.lua", "commit.lua")
        self._confirm = keys.fenced_script("qim_streams.commit", "confirm.lua")
        self._restore = keys.fenced_script("qim_streams.commit", "operations.lua", "restore.lua")
        self._leave_out = keys.fenced_script("qim_streams.commit", "leave_out.lua")
        self._covered = keys.fenced_script("qim_streams.commit", "covered.lua")
        self._pending = keys.fenced_script("qim_streams.commit", "pending.lua")
        self._records = Script.load("qim_streams.commit", "records.lua")

    async def commit(
        self,
        partition: int,
        epoch: int,
        requests: Sequence[CommitRequest],
        confirmed: Confirmed = NOTHING_CONFIRMED,
    ) -> list[CommitResult]:
        """See the port. More than 512 requests take several calls; UNKNOWN then covers all of them."""
        results: list[CommitResult] = []
        for start in range(0, max(1, len(requests)), GROUP_MAX):
            part = requests[start : start + GROUP_MAX]
            ids, offset = NOTHING_CONFIRMED if start else confirmed
            args = (self._retention_ms, b"".join(ids), offset, _encode(part))
            answer = await self._calls.numbered(self._commit, partition, epoch, "pend", args)
            if len(answer) != len(part) * _RESULT.size:
                raise InvariantViolation(f"ob:{partition}: {len(answer)} bytes for {len(part)} results")
            results.extend(_result(fields) for fields in _RESULT.iter_unpack(answer))
        return results

    async def confirm(self, partition: int, epoch: int, confirmed: Confirmed) -> None:
        """See the port."""
        ids, offset = confirmed
        for start in range(0, len(ids), CONFIRM_MAX):
            part = b"".join(ids[start : start + CONFIRM_MAX])
            last = start + CONFIRM_MAX >= len(ids)
            args = (part, offset if last else -1)
            await self._calls.numbered(self._confirm, partition, epoch, "pend", args)

    async def covered(self, partition: int, epoch: int) -> Covered:
        """See the port."""
        offset, fence = await self._calls.fenced(self._covered, partition, epoch, ("tail", "fence"))
        return NOTHING_COVERED if offset is None else Covered(int(offset), int(fence or 0))

    async def restore(
        self, partition: int, epoch: int, messages: Sequence[MessageRecord], covered: Covered
    ) -> int:
        """See the port."""
        packed = msgpack.packb([_restored(message) for message in messages], use_bin_type=False)
        args = (self._retention_ms, covered.offset, packed, covered.fence)
        return int(await self._calls.numbered(self._restore, partition, epoch, "tail", args))

    async def leave_out(self, partition: int, epoch: int, last: Sequence[tuple[str, str, int]]) -> None:
        """See the port."""
        rows = [(keys.conversation(tenant, chat), seq) for tenant, chat, seq in last]
        packed = msgpack.packb(rows, use_bin_type=False)
        await self._calls.numbered(self._leave_out, partition, epoch, "tail", (packed,))

    async def pending(self, partition: int, epoch: int, limit: int) -> list[PendingMessage]:
        """See the port. Ids of a conversation grow with its seqs, so the order of ids is the order wanted."""
        flat = await self._calls.fenced(self._pending, partition, epoch, ("pend",))
        oldest = sorted(zip(flat[::2], flat[1::2], strict=True))[:limit]
        rows = [(message_id, *place.decode().split("\0")) for message_id, place in oldest]
        found = await self._read(partition, [(tenant, chat, int(seq)) for _, tenant, chat, seq in rows])
        pending = []
        for (message_id, tenant, chat, seq), record in zip(rows, found, strict=True):
            if record is None:
                raise InvariantViolation(f"ob:{partition}: pending message {seq} of {chat} has no record")
            pending.append(PendingMessage(tenant, chat, int(seq), message_id, record))
        return pending

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See the port."""
        by_partition: dict[int, list[int]] = {}
        for index, (tenant, chat, _) in enumerate(wanted):
            by_partition.setdefault(self._partition_of(tenant, chat), []).append(index)
        found: list[bytes | None] = [None] * len(wanted)
        answers = await asyncio.gather(
            *(self._read(p, [wanted[index] for index in indexes]) for p, indexes in by_partition.items())
        )
        for indexes, rows in zip(by_partition.values(), answers, strict=True):
            for index, row in zip(indexes, rows, strict=True):
                found[index] = row
        return found

    async def _read(self, partition: int, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        rows: list[bytes | None] = []
        for start in range(0, len(wanted), limits.LUA_ARGUMENTS_MAX // 2):
            args: list[str | int] = []
            for tenant, chat, seq in wanted[start : start + limits.LUA_ARGUMENTS_MAX // 2]:
                args += (keys.conversation(tenant, chat), seq)
            rows.extend(await self._calls.read(self._records, partition, args))
        return rows


def _encode(requests: Sequence[CommitRequest]) -> bytes:
    # Without the bin type: cmsgpack in Redis knows only raw strings.
    packed: bytes = msgpack.packb([_packed(one) for one in requests], use_bin_type=False)
    return packed


def _packed(one: CommitRequest) -> tuple[object, ...]:
    (tenant, chat, sender, client_message_id, digest, message_id, at, tail, refuse_new, change, to_all) = one
    fixed = _FIXED.pack(digest, message_id, at, refuse_new | to_all << 1)
    if change is None:
        return f"{tenant}:{chat}", sender, client_message_id, fixed, tail
    return f"{tenant}:{chat}", sender, client_message_id, fixed, tail, change


def _restored(message: MessageRecord) -> tuple[object, ...]:
    kept = reservation_of(message)
    operation = operation_of(message)
    dedup = kept.digest + kept.message_id
    if revision_of(message) == NO_REVISION:  # else its body is not the one that was sent
        dedup += _NUMBERS.pack(kept.seq, kept.version, kept.committed_at)
    if operation is not None:
        dedup += _REVISION.pack(kept.revision)
    row: tuple[object, ...] = (
        keys.conversation(message.tenant_id, message.conversation_id),
        message.sender_id,
        message.client_message_id,
        message.conversation_seq,
        dedup,
        message.encode(),
    )
    if operation is None:
        return row
    return *row, (operation.kind, operation.target_seq, operation.body, operation.revision)


def _result(fields: tuple[int, bytes, int, int, int, int, int]) -> CommitResult:
    code, message_id, seq, version, committed_at, active, revision = fields
    status = _STATUS[code]
    if message_id == NO_ID and status is not CommitStatus.CLOCK_BEHIND:
        return CommitResult(status)
    return CommitResult(status, message_id, seq, version, committed_at, active, revision)


assert _FIXED.size == 41
assert len(NO_ID) == ID_BYTES
