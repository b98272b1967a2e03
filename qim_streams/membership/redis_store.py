"""The membership store on Redis (key table: `commit.keys`).

Invariants: one script call per change set, numbered and fenced like a commit, so a change and the sequence
numbers around it are one order; a member's rows, index, bitmaps and version appear together.

Spec: §4, §5.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from qim_streams import limits
from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.errors import RecordError
from qim_streams.membership.ports import (
    AppliedChange,
    Conversation,
    Member,
    MembershipChange,
    RestoredVersion,
    Unsettled,
)
from qim_streams.membership.rows import (
    ROLE_LETTERS,
    decode_member,
    decode_version,
    encode_member,
    encode_version,
)
from qim_streams.membership.rules import UNKNOWN_AT_MS, VERSION_BLOCK, fold_map, garbage
from qim_streams.redis_tier import RedisClient, translated

CHANGES_PER_CALL_MAX = 256
COLLECT_BLOCKS_MAX = 4
SETTLE_MAX = 2_000
_HEAD_NAMES = {"creator_id": "creator"}


class RedisMembershipStore:
    """`MembershipStore` on Redis. `partition_of(tenant, conversation)` finds the slot of a read."""

    def __init__(
        self, client: RedisClient, calls: PartitionCalls, partition_of: Callable[[str, str], int]
    ) -> None:
        self._client, self._calls, self._partition_of = client, calls, partition_of
        self._apply = keys.fenced_script("qim_streams.membership", "apply.lua")
        self._settle = keys.fenced_script("qim_streams.membership", "settle.lua")
        self._unsettled = keys.fenced_script("qim_streams.membership", "unsettled.lua")
        self._logged = keys.fenced_script("qim_streams.membership", "logged.lua")
        self._restore = keys.fenced_script("qim_streams.membership", "restore.lua")
        self._collect = keys.fenced_script("qim_streams.membership", "collect.lua")

    async def conversation(self, tenant_id: str, conversation_id: str) -> Conversation | None:
        """See the port."""
        async with translated("membership"):
            fields: Any = await self._client.hgetall(self._key(tenant_id, conversation_id, "c"))
        return _head(tenant_id, conversation_id, fields)

    async def members(self, tenant_id: str, conversation_id: str, user_ids: Sequence[str]) -> list[Member]:
        """See the port."""
        found: list[Member] = []
        for start in range(0, len(user_ids), limits.LUA_ARGUMENTS_MAX):
            part = list(user_ids[start : start + limits.LUA_ARGUMENTS_MAX])
            async with translated("membership"):
                rows: Any = await self._client.hmget(self._key(tenant_id, conversation_id, "gm"), part)
            found += [
                decode_member(user, row) for user, row in zip(part, rows, strict=True) if row is not None
            ]
        return found

    async def page(
        self, tenant_id: str, conversation_id: str, after_user_id: str, limit: int
    ) -> list[Member]:
        """See the port."""
        start = f"({after_user_id}" if after_user_id else "-"
        async with translated("membership"):
            users: Any = await self._client.zrangebylex(
                self._key(tenant_id, conversation_id, "gi"), start, "+", start=0, num=limit
            )
        members = await self.members(tenant_id, conversation_id, [user.decode() for user in users])
        return [member for member in members if member.active]

    async def everyone(self, tenant_id: str, conversation_id: str) -> list[Member]:
        """See the port."""
        async with translated("membership"):
            rows: Any = await self._client.hgetall(self._key(tenant_id, conversation_id, "gm"))
        return [decode_member(user.decode(), row) for user, row in rows.items()]

    async def apply(
        self, partition: int, epoch: int, changes: Sequence[MembershipChange]
    ) -> list[AppliedChange | None]:
        """See the port. At most 256 changes in one atomic call."""
        made: list[AppliedChange | None] = []
        for start in range(0, max(1, len(changes)), CHANGES_PER_CALL_MAX):
            part = changes[start : start + CHANGES_PER_CALL_MAX]
            packed = msgpack.packb([_encode(change) for change in part], use_bin_type=False)
            answers = await self._calls.numbered(self._apply, partition, epoch, "gpend", (packed,))
            made += [_applied(*pair) for pair in zip(part, answers, strict=True)]
        return made

    async def unsettled(self, partition: int, epoch: int, limit: int) -> list[Unsettled]:
        """See the port."""
        flat = await self._calls.fenced(self._unsettled, partition, epoch, ("gpend",))
        rows = sorted(zip(flat[::2], flat[1::2], strict=True))[:limit]
        found = []
        for chat, version in rows:
            tenant_id, _, conversation_id = chat.decode().partition(":")
            found.append(Unsettled(tenant_id, conversation_id, int(version)))
        return found

    async def settle(self, partition: int, epoch: int, done: Sequence[Unsettled], offset: int) -> None:
        """See the port."""
        for start in range(0, len(done), SETTLE_MAX):
            last = start + SETTLE_MAX >= len(done)
            args: list[str | int] = [offset if last else -1]
            for one in done[start : start + SETTLE_MAX]:
                args += (keys.conversation(one.tenant_id, one.conversation_id), one.version)
            await self._calls.numbered(self._settle, partition, epoch, "gpend", args)

    async def logged(self, partition: int, epoch: int) -> int:
        """See the port."""
        offset = await self._calls.fenced(self._logged, partition, epoch, ("gtail",))
        return -1 if offset is None else int(offset)

    async def restore(
        self, partition: int, epoch: int, versions: Sequence[RestoredVersion], offset: int
    ) -> int:
        """See the port."""
        packed = msgpack.packb([_restored(version) for version in versions], use_bin_type=False)
        return int(await self._calls.numbered(self._restore, partition, epoch, "gtail", (offset, packed)))

    async def collect(
        self, partition: int, epoch: int, tenant_id: str, conversation_id: str, before_ms: int
    ) -> int:
        """See the port. Goes by whole blocks of 64 versions, at most 4 of them in one call."""
        forgotten = 0
        for _ in range(COLLECT_BLOCKS_MAX):
            count = await self._collect_block(partition, epoch, tenant_id, conversation_id, before_ms)
            forgotten += count
            if not count:
                break
        return forgotten

    async def _collect_block(
        self, partition: int, epoch: int, tenant_id: str, conversation_id: str, before_ms: int
    ) -> int:
        """Forget the oldest block if the whole map that follows it is older than `before_ms`."""
        head, gv, gb = (self._key(tenant_id, conversation_id, what) for what in ("c", "gv", "gb"))
        async with translated("membership"):
            oldest = int(await self._client.hget(head, "oldest") or 1)
            following = (oldest // VERSION_BLOCK + 1) * VERSION_BLOCK
            names = [str(version) for version in range(oldest, following + 1)]
            rows: Any = await self._client.hmget(gv, names)
        if rows[-1] is None:
            return 0
        at_ms, whole = decode_version(rows[-1])
        if at_ms >= before_ms:
            return 0
        block = [decode_version(row)[1] for row in rows[:-1] if row is not None]
        unused = [f"{shard}:{bitmap}" for shard, bitmap in garbage(block, fold_map([whole]))]
        prefix = len(keys.base(partition))
        await self._calls.fenced(
            self._collect,
            partition,
            epoch,
            (head[prefix:], gv[prefix:], gb[prefix:]),
            (following, len(names) - 1, *names[:-1], *unused),
        )
        return len(names) - 1

    def _key(self, tenant: str, chat: str, what: str) -> str:
        partition = self._partition_of(tenant, chat)
        return f"{keys.base(partition)}{what}:{keys.conversation(tenant, chat)}"


def _encode(change: MembershipChange) -> tuple[object, ...]:
    joins: list[object] = []
    for join in change.joins:
        joins += (join.user_id, join.ordinal, ROLE_LETTERS[join.role])
    roles = [part for user, role in change.roles.items() for part in (user, ROLE_LETTERS[role])]
    bitmaps = [part for shard, blob in change.bitmaps.items() for part in (shard, blob)]
    head = [part for name, value in change.head.items() for part in (_HEAD_NAMES.get(name, name), str(value))]
    return (
        keys.conversation(change.tenant_id, change.conversation_id),
        change.expected_version,
        change.token,
        change.at_ms.to_bytes(8, "big"),
        joins,
        list(change.leaves),
        roles,
        bitmaps,
        head,
    )


def _applied(change: MembershipChange, answer: Sequence[Any] | None) -> AppliedChange | None:
    if not answer:
        return None
    flat, *rows = answer
    head = _head(change.tenant_id, change.conversation_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    if head is None:
        raise RecordError(f"head of {change.conversation_id}: there is none after a change")
    touched = dict(zip(rows[::2], rows[1::2], strict=True))
    return AppliedChange(head, tuple(decode_member(user.decode(), row) for user, row in touched.items()))


def _restored(made: RestoredVersion) -> tuple[object, ...]:
    head, version = made.head, made.head.version
    fields = {
        "kind": head.kind,
        "name": head.name,
        "send_policy": head.send_policy,
        "join_policy": head.join_policy,
        "history_policy": head.history_policy,
        "members_max": head.members_max,
        "active": head.members_active,
        "created_at": head.created_at,
        "creator": head.creator_id,
        "dismissed": int(head.dismissed),
    }
    return (
        keys.conversation(head.tenant_id, head.conversation_id),
        version,
        [part for member in made.members for part in (member.user_id, encode_member(member))],
        [
            part
            for number, rows in made.maps.items()
            for part in (
                str(number),
                encode_version(made.at_ms if number == version else UNKNOWN_AT_MS, rows),
            )
        ],
        [part for shard, blob in made.bitmaps.items() if blob for part in (f"{shard}:{version}", blob)],
        [part for name, value in fields.items() for part in (name, str(value))],
        made.logged,
    )


def _head(tenant_id: str, conversation_id: str, fields: dict[bytes, bytes]) -> Conversation | None:
    if b"kind" not in fields:
        return None
    text = {name.decode(): value for name, value in fields.items() if name not in (b"last_id", b"token")}
    try:
        return Conversation(
            tenant_id,
            conversation_id,
            text["kind"].decode(),
            int(text["mv"]),
            int(text.get("seq", 0)),
            text["name"].decode(),
            text["send_policy"].decode(),
            text["join_policy"].decode(),
            text["history_policy"].decode(),
            int(text["members_max"]),
            int(text["active"]),
            int(text["created_at"]),
            text["creator"].decode(),
            text["dismissed"] == b"1",
        )
    except (KeyError, ValueError) as error:
        raise RecordError(f"head of {conversation_id}: {error!r}") from error
