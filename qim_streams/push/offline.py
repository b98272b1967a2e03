"""OfflineTasks: a PushTask for each registered device of a recipient that has no valid presence.

Who is registered is followed from the device log like presence: no call to ask, and a shard in which nobody
is registered costs one look at a counter. A device that is registered twice in two shards' logs is not
possible: the log is partitioned as users are.

Tasks are made before a batch is pushed, so they are made again when it is; the notification stage knows each
(user, device, message). Messages that count as unread only: not the sender's own, no edits and recalls.

Spec: §6. Scenarios H2 H4 G7.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from qim_streams.errors import RecordError
from qim_streams.log_ports import LogAppender, LogRecord, Outgoing
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.mailbox.shards import Shard
from qim_streams.notification import metrics
from qim_streams.notification.records import SETTINGS_NAME, PushTask, decode_device
from qim_streams.notification.rules import task_partition
from qim_streams.push.ports import Follower
from qim_streams.push.presence import OnlineDevices
from qim_streams.records import KIND_MESSAGE, GroupDispatch

log = logging.getLogger(__name__)

DEVICES_MAX: Final = 1_000_000  # per worker; more are not notified
TASKS_PER_APPEND: Final = 2_000

_Key = tuple[str, str, str]


class _Tenant:
    """The registered users of a tenant in a shard: ordinal -> (user, devices)."""

    __slots__ = ("ordinals", "users")

    def __init__(self) -> None:
        self.ordinals = BitMap()
        self.users: dict[int, tuple[str, set[str]]] = {}


class RegisteredDevices:
    """The registered devices of one shard, from the device log. Pure state."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._places: dict[_Key, int] = {}  # device -> ordinal

    def __len__(self) -> int:
        return len(self._places)

    def apply(self, key: bytes | None, value: bytes | None, *, full: bool = False) -> str | None:
        """Take one record of the log; why it was not taken, None when it was. `full`: no device is added."""
        try:
            tenant, user, name = (key or b"").decode().split("\0")
            device = None if value is None or name == SETTINGS_NAME else decode_device(value)
        except (ValueError, RecordError):
            return "malformed"
        if name == SETTINGS_NAME:
            return None
        where = (tenant, user, name)
        if device is None or device.dead:
            self._remove(where)
        elif (device.tenant_id, device.user_id, device.device_id) != where:
            return "malformed"
        elif where not in self._places and full:
            return "full"
        else:
            self._remove(where)  # a user may have another ordinal after a loss
            self._add(where, device.ordinal)
        return None

    def among(self, tenant_id: str, members: Members) -> list[tuple[int, str, set[str]]]:
        """(ordinal, user, devices) of each registered one of `members`."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return []
        users = tenant.users
        ordinals: Iterable[int] = members & tenant.ordinals if isinstance(members, BitMap) else members
        return [(ordinal, *found) for ordinal in ordinals if (found := users.get(ordinal)) is not None]

    def _add(self, where: _Key, ordinal: int) -> None:
        tenant = self._tenants.setdefault(where[0], _Tenant())
        tenant.ordinals.add(ordinal)
        tenant.users.setdefault(ordinal, (where[1], set()))[1].add(where[2])
        self._places[where] = ordinal

    def _remove(self, where: _Key) -> None:
        ordinal = self._places.pop(where, None)
        if ordinal is None:
            return
        tenant = self._tenants[where[0]]
        devices = tenant.users[ordinal][1]
        devices.discard(where[2])
        if not devices:
            del tenant.users[ordinal]
            tenant.ordinals.discard(ordinal)
            if not tenant.users:
                del self._tenants[where[0]]


def find_tasks(
    shard: int,
    records: Iterable[Addressed],
    registered: RegisteredDevices,
    online: OnlineDevices,
    now_ms: int,
) -> Iterator[PushTask]:
    """A task for each registered device of the records' recipients that is not online."""
    for _, dispatch, members in records:
        if dispatch is None or dispatch.kind != KIND_MESSAGE:
            continue
        found = registered.among(dispatch.tenant_id, members)
        if not found:
            continue
        ordinals = [ordinal for ordinal, _, _ in found]
        here = {(one.ordinal, one.device_id) for one in online.among(dispatch.tenant_id, ordinals)}
        for ordinal, user, devices in found:
            if ordinal == dispatch.sender_ordinal:
                continue
            for device in devices:
                if (ordinal, device) not in here:
                    yield _task(shard, dispatch, ordinal, user, device, now_ms)


def _task(shard: int, dispatch: GroupDispatch, ordinal: int, user: str, device: str, now_ms: int) -> PushTask:
    return PushTask(
        dispatch.tenant_id,
        user,
        ordinal,
        device,
        dispatch.message_id,
        dispatch.conversation_id,
        dispatch.conversation_seq,
        dispatch.sender_id,
        dispatch.committed_at,
        now_ms,
        shard,
    )


class OfflineTasks:
    """Follows the device log and appends tasks. `partitions`: of the task topic; `now_ms`: wall clock.

    Messages older than `age_max_ms` make no task: nobody would be told of them any more.
    """

    def __init__(
        self,
        topic: str,
        *,
        partitions: int,
        log_appender: LogAppender,
        follower: Follower,
        age_max_ms: int,
        now_ms: Callable[[], int],
        devices_max: int = DEVICES_MAX,
    ) -> None:
        self._topic, self._partitions, self._log = topic, partitions, log_appender
        self._follower, self._age_max_ms, self._now_ms = follower, age_max_ms, now_ms
        self._devices_max = devices_max
        follower.start(self.on_devices)
        self._registered: dict[int, RegisteredDevices] = {}
        self._count = 0

    async def attach(self, shard: int) -> None:
        """Learn who is registered in a shard; returns when the log was read to its end."""
        self.detach(frozenset({shard}))
        self._registered[shard] = RegisteredDevices()
        await self._follower.follow(shard)

    def detach(self, shards: frozenset[int]) -> None:
        """Forget who is registered in shards."""
        self._follower.unfollow(shards)
        for shard in shards:
            gone = self._registered.pop(shard, None)
            self._recount(0 if gone is None else -len(gone))

    def failure(self) -> BaseException | None:
        """Why the log is not read any more, None while it is."""
        return self._follower.failure()

    async def close(self) -> None:
        """Stop following."""
        await self._follower.close()
        self.detach(frozenset(self._registered))

    async def on_devices(self, partition: int, records: Sequence[LogRecord]) -> None:
        """Apply records of the device log of a followed shard."""
        registered = self._registered.get(partition)
        if registered is None:
            return
        for one in records:
            before = len(registered)
            why = registered.apply(one.key, one.value, full=self._count >= self._devices_max)
            self._recount(len(registered) - before)
            if why is not None:
                metrics.REGISTERED_REFUSED.labels(why).inc()

    async def offer(
        self,
        work: Sequence[tuple[Shard, Sequence[Addressed]]],
        online: Mapping[int, OnlineDevices],
        *,
        lanes_apart: bool = False,
    ) -> None:
        """Append the tasks of what was not pushed yet. LogAppendError: some may have been appended.

        While the lanes of a shard stand apart its `pushed_through` says nothing: everything given is new.
        """
        if not self._count:
            return
        now = self._now_ms()
        outgoing: list[Outgoing] = []
        for shard, records in work:
            registered, here = self._registered.get(shard.shard), online.get(shard.shard)
            if not registered or here is None:
                continue
            through = -1 if lanes_apart else shard.pushed_through
            fresh = self._fresh(records, through, now)
            for task in find_tasks(shard.shard, fresh, registered, here, now):
                partition = task_partition(task, self._partitions)
                outgoing.append(Outgoing(self._topic, partition, task.key, task.encode()))
                if len(outgoing) >= TASKS_PER_APPEND:
                    await self._append(outgoing)
                    outgoing = []
        await self._append(outgoing)

    def _fresh(self, records: Sequence[Addressed], through: int, now: int) -> list[Addressed]:
        oldest = now - self._age_max_ms
        return [
            one
            for one in records
            if one.offset > through and one.dispatch is not None and one.dispatch.committed_at >= oldest
        ]

    async def _append(self, outgoing: list[Outgoing]) -> None:
        if outgoing:
            await self._log.append(outgoing)
            metrics.TASKS.inc(len(outgoing))

    def _recount(self, change: int) -> None:
        self._count += change
        metrics.REGISTERED.inc(change)
