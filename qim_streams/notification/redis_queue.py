"""The queue of notifications in Redis, all keys of a slot (a partition of the task log) behind one hash tag.

=====================  ======  ======================================================================
``{n:<p>}:at``         string  next offset of the partition that was not accepted
``{n:<p>}:task``       hash    task id (16 bytes) -> PushTask
``{n:<p>}:due:<v>``    zset    task id -> when to take it next, ms: the way to provider v
``{n:<p>}:try``        hash    task id -> attempts that the provider answered
``{n:<p>}:out``        hash    task id -> an attempt was begun, and its end is not known
``{n:<p>}:over``       zset    task id -> when it may be forgotten: dealt with, whatever came of it
``{n:<p>}:sent``       zset    the same, those handed over: what a trace looks into
=====================  ======  ======================================================================

A task that is over stays known for `kept_ms`, beyond the age at which a task is not sent any more: so a task
that comes again is either known or too old.

Spec: §6. Scenarios H1 H10.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from qim_streams.errors import InvariantViolation
from qim_streams.notification.ports import Accepted, Done, Later, NewTask, QueuedTask, Taken
from qim_streams.redis_tier import RedisClient, Script, exchange, translate, translated, type_args

TASKS_PER_CALL: Final = 900  # four arguments each; Lua takes some thousands
PACKAGE: Final = "qim_streams.notification"


class RedisTaskQueue:
    """`TaskQueue` on Redis. `claim_ms`: how long a taken task belongs to whoever took it."""

    def __init__(
        self, client: RedisClient, providers: Sequence[str], *, waiting_max: int, claim_ms: int, kept_ms: int
    ) -> None:
        self._client, self._providers = client, list(providers)
        self._waiting_max, self._claim_ms, self._kept_ms = waiting_max, claim_ms, kept_ms
        self._accept = Script.load(PACKAGE, "queue_accept.lua")
        self._take = Script.load(PACKAGE, "queue_take.lua")
        self._settle = Script.load(PACKAGE, "queue_settle.lua")

    async def position(self, slot: int) -> int:
        """See `TaskQueue.position`."""
        async with translated("notifications"):
            at = await self._client.get(_key(slot, "at"))
        return 0 if at is None else int(at)

    async def accept(
        self, slot: int, tasks: Sequence[NewTask], next_offset: int, now_ms: int, stands: int = 0
    ) -> Accepted:
        """See `TaskQueue.accept`."""
        keys = [_key(slot, one) for one in ("over", "task", "at")]
        keys += [_key(slot, f"due:{one}") for one in self._providers]
        totals = [0, 0, 0]
        for start in range(0, max(1, len(tasks)), TASKS_PER_CALL):
            part = tasks[start : start + TASKS_PER_CALL]
            last = start + TASKS_PER_CALL >= len(tasks)
            args: list[type_args] = [now_ms, self._waiting_max, next_offset if last else -1, stands]
            for one in part:
                args += (one.task_id, self._providers.index(one.provider) + 1, one.due_at, one.task)
            async with translated("notifications"):
                answer = await self._accept.call(self._client, keys, args)
            if int(answer[0]) < 0:
                raise fell_back(slot, stands, int(answer[1]))
            totals = [total + int(more) for total, more in zip(totals, answer, strict=True)]
        return Accepted(*totals)

    async def take(self, slots: Sequence[int], provider: str, now_ms: int, limit: int) -> Taken:
        """See `TaskQueue.take`."""
        if not slots or limit < 1:
            return Taken([], None)
        claimed_until = now_ms + self._claim_ms
        each = -(-limit // len(slots))
        calls: list[tuple[Sequence[str | bytes], Sequence[type_args]]] = [
            (
                [_key(slot, one) for one in (f"due:{provider}", "task", "try", "out")],
                (now_ms, claimed_until, each),
            )
            for slot in slots
        ]
        async with translated("notifications"):
            answers = await self._take.call_many(self._client, calls)
        tasks: list[QueuedTask] = []
        dues = []
        for slot, answer in zip(slots, _checked(answers), strict=True):
            if answer[0] >= 0:
                dues.append(int(answer[0]))
            for at in range(1, len(answer), 4):
                task_id, task, attempts, begun = answer[at : at + 4]
                tasks.append(QueuedTask(slot, task_id, task, int(attempts), bool(begun), claimed_until))
        return Taken(tasks, min(dues, default=None))

    async def begin(self, tasks: Sequence[QueuedTask]) -> None:
        """See `TaskQueue.begin`."""
        by_slot: dict[int, list[bytes]] = defaultdict(list)
        for one in tasks:
            by_slot[one.slot] += (one.task_id, b"1")
        if by_slot:
            async with translated("notifications"):
                _checked(
                    await exchange(
                        self._client,
                        [("HSET", _key(slot, "out"), *fields) for slot, fields in by_slot.items()],
                    )
                )

    async def settle(self, done: Sequence[Done], later: Sequence[Later], now_ms: int) -> None:
        """See `TaskQueue.settle`."""
        places = dict.fromkeys([(one.slot, one.provider) for one in done])
        places |= dict.fromkeys([(one.slot, one.provider) for one in later])
        calls: list[tuple[Sequence[str | bytes], Sequence[type_args]]] = []
        for slot, provider in places:
            over = [one for one in done if (one.slot, one.provider) == (slot, provider)]
            args: list[type_args] = [now_ms + self._kept_ms, len(over)]
            for one in over:
                args += (one.task_id, int(one.sent))
            for wait in later:
                if (wait.slot, wait.provider) == (slot, provider):
                    args += (wait.task_id, wait.due_at, int(wait.counted))
            names = (f"due:{provider}", "task", "try", "out", "over", "sent")
            calls.append(([_key(slot, one) for one in names], args))
        if calls:
            async with translated("notifications"):
                _checked(await self._settle.call_many(self._client, calls))
                for slot in dict.fromkeys(slot for slot, _ in places):
                    await self._client.zremrangebyscore(_key(slot, "sent"), "-inf", now_ms)

    async def waiting(self, slots: Sequence[int], provider: str) -> int:
        """See `TaskQueue.waiting`."""
        if not slots:
            return 0
        async with translated("notifications"):
            commands = [("ZCARD", _key(slot, f"due:{provider}")) for slot in slots]
            return sum(int(one) for one in _checked(await exchange(self._client, commands)))


class RedisSentTasks:
    """`trace.service.Notified`: which tasks were handed to a provider, as far as it is remembered."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def sent(self, tasks: Sequence[tuple[int, bytes]]) -> list[bool]:
        """See the port; many tasks in one round trip."""
        if not tasks:
            return []
        async with translated("notifications"):
            commands = [("ZSCORE", _key(slot, "sent"), task_id) for slot, task_id in tasks]
            answers = await exchange(self._client, commands)
        return [one is not None for one in _checked(answers)]


def fell_back(slot: int, knew: int, stands: int) -> InvariantViolation:
    """What is wrong with a position that stands lower than it did."""
    return InvariantViolation(
        f"notifications, slot {slot}: its queue lost its last writes: the position was {knew}, "
        f"is {stands}; a restart goes on from there"
    )


def _checked(answers: Sequence[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, BaseException):
            raise translate(answer, "notifications") from answer
    return list(answers)


def _key(slot: int, what: str) -> str:
    return f"{{n:{slot}}}:{what}"
