"""Heads of conversations in bulk, on Redis (key table: `commit.keys`). Nothing is written.

Invariants: a conversation's head, member row and records are of one moment; one script call looks at
`CONVERSATIONS_PER_CALL` conversations of one Outbox partition at most, so nobody else waits long.

Spec: §9.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.errors import RecordError, StoreError
from qim_streams.hlc import millis_of
from qim_streams.membership.rows import decode_member
from qim_streams.redis_tier import RedisClient, Script
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.ports import HeadQuery, HeadView

CONVERSATIONS_PER_CALL: Final = 32  # about a quarter of a millisecond of the server
RECORDS_MAX: Final = 8  # of one conversation: more unread are read one conversation at a time
BYTES_MAX: Final = 256 * 1024  # of records in one call; beyond, one record of each conversation
_FIELDS: Final = 11  # of an answer, before the records
_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack  # cmsgpack knows no bin


class RedisConversationHeads:
    """`ConversationHeads` on Redis. `partition_of(tenant, conversation)` finds the slot."""

    def __init__(self, client: RedisClient, partition_of: Callable[[str, str], int]) -> None:
        self._partition_of = partition_of
        self._calls = PartitionCalls(ScriptPipe(client))
        self._heads = Script.load("qim_streams.sessions", "heads.lua")

    async def heads(self, tenant_id: str, user_id: str, wanted: Sequence[HeadQuery]) -> list[HeadView | None]:
        """See the port. StoreError also for a member row that cannot be read."""
        return await self.of_users(tenant_id, [(user_id, one) for one in wanted])

    async def of_users(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[HeadView | None]:
        """See the port."""
        by_partition: dict[int, list[int]] = {}
        partition_of = self._partition_of
        for index, (_, one) in enumerate(wanted):
            by_partition.setdefault(partition_of(tenant_id, one[0]), []).append(index)
        parts = [
            (partition, indexes[start : start + CONVERSATIONS_PER_CALL])
            for partition, indexes in by_partition.items()
            for start in range(0, len(indexes), CONVERSATIONS_PER_CALL)
        ]
        answers = await asyncio.gather(
            *(
                self._calls.read(
                    self._heads, partition, _arguments(tenant_id, [wanted[at] for at in indexes])
                )
                for partition, indexes in parts
            )
        )
        found: list[HeadView | None] = [None] * len(wanted)
        for (_, indexes), answered in zip(parts, answers, strict=True):
            for index, answer in zip(indexes, answered, strict=True):
                if answer:
                    user_id, one = wanted[index]
                    seen = one.seen
                    again = seen is not None and seen.raw == answer
                    found[index] = seen if again else _view(user_id, answer)
        return found


def _arguments(tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]) -> tuple[int | bytes, ...]:
    flat: list[str | int | bytes] = []
    for user_id, (name, above, known_seq, known_id, skip_to, _) in wanted:
        flat += (keys.conversation(tenant_id, name), user_id, above, known_seq, known_id, skip_to)
    return RECORDS_MAX, BYTES_MAX, _pack(flat)


def _view(user_id: str, answer: list[Any]) -> HeadView:
    kind, name, peer, peer_row, dismissed, policy, allocated, committed, last_id, row, known = answer[
        :_FIELDS
    ]
    try:
        member = None if row is None else decode_member(user_id, row)
        peer_ordinal = decode_member("", peer_row).ordinal if peer_row else None
    except RecordError as error:
        raise StoreError(f"member row of {user_id}: {error}") from error
    return HeadView(
        kind.decode(),
        name.decode(),
        peer.decode() if peer else None,
        peer_ordinal,
        dismissed == b"1",
        policy.decode(),
        int(allocated),
        int(committed),
        millis_of(last_id) if last_id else 0,
        member,
        answer[_FIELDS:],
        last_id or b"",
        known == 1,
        answer if known == 1 else None,  # with records it is not going to come again
    )
