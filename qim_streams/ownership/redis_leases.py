"""Leases on Redis: one script, no clock of ours, one hash tag per resource.

Keys: ``{resource}:lease`` (hash node, boot, address; expires with the lease) and ``{resource}:epoch``
(for ever). Scripts of the stages compare the epoch in the same slot, so a grant fences the former owner
at once. A grant of a MailboxShard notes W beside it: ``{s:k}:epochs``, the EpochBoundary of each epoch.

An epoch is never given twice, not even by a server that lost some or all of its data: one that is gone
begins again at the clock's seconds, and a server that was started anew (``{resource}:run``) leaves some
numbers out (docs/decisions/0013-lost-hot-tier.md).

Spec: §11, §14.6.
"""

from typing import Any

from redis import exceptions as redis_errors

from qim_streams import limits
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.redis_tier import RedisClient, Script, translate, translated

_SHARD = "s:"  # resources that have a watermark
EPOCH_FROM_CLOCK = 0
BATCH_MAX = 1_000  # resources in one pipeline


class RedisLeaseStore:
    """`LeaseStore` on Redis."""

    def __init__(self, client: RedisClient, first_epoch: int = EPOCH_FROM_CLOCK) -> None:
        """`first_epoch` of a resource that has none; a number of one's own only where nothing is at stake."""
        self._client, self._first_epoch = client, first_epoch
        self._script = Script.load("qim_streams.ownership", "leases.lua")

    async def acquire(self, resource: str, node: str, boot: int, address: str, ttl_ms: int) -> Grant | Holder:
        """See the port."""
        async with translated(resource):
            answer = await self._script.call(
                self._client,
                _granting_keys(resource),
                ("acquire", node, boot, ttl_ms, address, limits.EPOCH_BOUNDARIES_MAX, self._first_epoch),
            )
        if answer[0]:
            return Grant(resource, int(answer[1]))
        return _holder(resource, answer[2:5], int(answer[1]), int(answer[5]))

    async def renew(self, grants: list[Grant], node: str, boot: int, ttl_ms: int) -> list[bool]:
        """See the port. StoreError when it is not known of all of them: then none was answered."""
        answers = await self._each(grants, lambda grant: ("renew", node, boot, ttl_ms, grant.epoch))
        return [bool(answer) for answer in answers]

    async def release(self, grants: list[Grant], node: str, boot: int) -> None:
        """See the port."""
        await self._each(grants, lambda grant: ("release", node, boot, grant.epoch))

    async def raise_epoch(self, grant: Grant, node: str, boot: int, above: int) -> Grant | None:
        """See the port."""
        async with translated(grant.resource):
            epoch = await self._script.call(
                self._client,
                _granting_keys(grant.resource),
                ("raise", node, boot, grant.epoch, above, limits.EPOCH_BOUNDARIES_MAX),
            )
        return Grant(grant.resource, int(epoch)) if epoch else None

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        """See the port."""
        found: list[Holder | None] = []
        for start in range(0, len(resources), BATCH_MAX):
            part = resources[start : start + BATCH_MAX]
            async with translated("leases"):
                pipe = self._client.pipeline(transaction=False)
                for resource in part:
                    lease, epoch = _keys(resource)
                    pipe.hmget(lease, ["node", "boot", "address"])
                    pipe.pttl(lease)
                    pipe.get(epoch)
                flat = await pipe.execute()
            rows = zip(part, flat[::3], flat[1::3], flat[2::3], strict=True)
            found.extend(
                _holder(resource, fields, int(epoch or 0), left)
                if fields[0] is not None and left > 0
                else None
                for resource, fields, left, epoch in rows
            )
        return found

    async def _each(self, grants: list[Grant], args: Any) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(grants), BATCH_MAX):
            part = grants[start : start + BATCH_MAX]
            calls = [(_keys(grant.resource), args(grant)) for grant in part]
            async with translated("leases"):
                answers.extend(await self._script.call_many(self._client, calls))
        for answer in answers:
            if isinstance(answer, redis_errors.RedisError):
                raise translate(answer, "leases") from answer
        return answers


def _keys(resource: str) -> tuple[str, str]:
    return f"{{{resource}}}:lease", f"{{{resource}}}:epoch"


def _granting_keys(resource: str) -> tuple[str, ...]:
    keys = (*_keys(resource), f"{{{resource}}}:run")
    if not resource.startswith(_SHARD):
        return keys
    return (*keys, f"{{{resource}}}:w", f"{{{resource}}}:epochs")


def _holder(resource: str, fields: list[bytes], epoch: int, remaining_ms: int) -> Holder:
    node, boot, address = (field.decode() for field in fields)
    return Holder(resource, node, int(boot), address, epoch, remaining_ms)
