"""Offline push in memory: registered devices, the queue of notifications, a log that keeps what it is given.

They keep to the ports of `notification.ports`; `tests/contract/test_notification_stores.py` runs one suite on
them and on Redis.

Spec: §6.
"""

from collections.abc import Sequence

from qim_streams import limits
from qim_streams.errors import InvariantViolation
from qim_streams.log_ports import Outgoing
from qim_streams.notification.ports import (
    Accepted,
    DeviceRow,
    Done,
    Later,
    NewTask,
    QueuedTask,
    Taken,
)
from qim_streams.notification.records import PushDevice, PushSettings


class MemoryPushDevices:
    """`DeviceStore`. `sessions`: (tenant, user, device) -> session_epoch."""

    def __init__(self, devices_max: int = limits.DEVICES_MAX) -> None:
        self._max = devices_max
        self.rows: dict[tuple[str, str], dict[str, PushDevice]] = {}
        self.hours: dict[tuple[str, str], PushSettings] = {}
        self.sessions: dict[tuple[str, str, str], int] = {}
        self._owners: dict[tuple[str, str, str], tuple[str, str, str]] = {}
        self.whole = True

    async def load(self, wanted: Sequence[tuple[str, str, str]]) -> list[DeviceRow]:
        """See `DeviceStore.load`."""
        return [
            DeviceRow(
                self.rows.get((tenant, user), {}).get(device),
                self.hours.get((tenant, user)),
                self.sessions.get((tenant, user, device), 0),
            )
            for tenant, user, device in wanted
        ]

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """See `DeviceStore.devices`."""
        return [one for _, one in sorted(self.rows.get((tenant_id, user_id), {}).items())]

    async def put(self, device: PushDevice) -> str | None:
        """See `DeviceStore.put`."""
        mine = self.rows.setdefault(device[:2], {})
        before, gone = mine.get(device.device_id), None
        if before is not None and before.version > device.version:
            return None
        if before is None and len(mine) >= self._max:
            gone = min(mine.values(), key=lambda one: one.version).device_id
            del mine[gone]
        mine[device.device_id] = device
        return gone

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings | None:
        """See `DeviceStore.settings`."""
        return self.hours.get((tenant_id, user_id))

    async def put_settings(self, settings: PushSettings) -> None:
        """See `DeviceStore.put_settings`."""
        before = self.hours.get(settings[:2])
        if before is None or before.version <= settings.version:
            self.hours[settings[:2]] = settings

    async def remove(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """See `DeviceStore.remove`."""
        self.rows.get((tenant_id, user_id), {}).pop(device_id, None)

    async def bury(self, device: PushDevice, reason: str) -> bool:
        """See `DeviceStore.bury`."""
        mine = self.rows.get(device[:2], {})
        before = mine.get(device.device_id)
        if before is None or before.version != device.version:
            return False
        mine[device.device_id] = device._replace(token="", dead=reason)
        return True

    async def claim_token(self, device: PushDevice) -> tuple[str, str, str] | None:
        """See `DeviceStore.claim_token`."""
        key, owner = (device.provider, device.app, device.token), (*device[:2], device.device_id)
        before = self._owners.get(key)
        self._owners[key] = owner
        return None if before == owner else before

    async def is_whole(self) -> bool:
        """See `DeviceStore.is_whole`."""
        return self.whole

    async def mark_whole(self) -> None:
        """See `DeviceStore.mark_whole`."""
        self.whole = True


class MemoryTaskQueue:
    """`TaskQueue`."""

    def __init__(self, *, waiting_max: int, claim_ms: int, kept_ms: int) -> None:
        self._waiting_max, self._claim_ms, self._kept_ms = waiting_max, claim_ms, kept_ms
        self._at: dict[int, int] = {}
        self._due: dict[tuple[int, str], dict[bytes, int]] = {}
        self._tasks: dict[tuple[int, bytes], bytes] = {}
        self._tries: dict[tuple[int, bytes], int] = {}
        self._out: set[tuple[int, bytes]] = set()
        self._over: dict[tuple[int, bytes], int] = {}
        self.sent: list[bytes] = []

    async def position(self, slot: int) -> int:
        """See `TaskQueue.position`."""
        return self._at.get(slot, 0)

    async def accept(
        self, slot: int, tasks: Sequence[NewTask], next_offset: int, now_ms: int, stands: int = 0
    ) -> Accepted:
        """See `TaskQueue.accept`."""
        if 0 < self._at.get(slot, 0) < stands:
            raise InvariantViolation(f"slot {slot} fell back from {stands}")
        self._over = {place: until for place, until in self._over.items() if until > now_ms}
        queued = known = refused = 0
        for one in tasks:
            place, due = (slot, one.task_id), self._due.setdefault((slot, one.provider), {})
            if place in self._over or place in self._tasks:
                known += 1
            elif len(due) >= self._waiting_max:
                refused += 1
            else:
                due[one.task_id] = one.due_at
                self._tasks[place] = one.task
                queued += 1
        self._at[slot] = max(self._at.get(slot, 0), next_offset)
        return Accepted(queued, known, refused)

    def lose(self, slot: int, position: int, tasks: Sequence[bytes]) -> None:
        """What a store does that forgets its last writes: the position goes back, tasks are gone."""
        self._at[slot] = position
        for task_id in tasks:
            self._tasks.pop((slot, task_id))
            for (number, _), due in self._due.items():
                if number == slot:
                    due.pop(task_id, None)

    async def take(self, slots: Sequence[int], provider: str, now_ms: int, limit: int) -> Taken:
        """See `TaskQueue.take`."""
        if not slots or limit < 1:
            return Taken([], None)
        until = now_ms + self._claim_ms
        tasks: list[QueuedTask] = []
        dues: list[int] = []
        for slot in slots:
            due = self._due.get((slot, provider), {})
            ready = sorted((at, task_id) for task_id, at in due.items() if at <= now_ms)
            for _, task_id in ready[: -(-limit // len(slots))]:
                place = (slot, task_id)
                due[task_id] = until
                tries = self._tries.get(place, 0)
                tasks.append(QueuedTask(slot, task_id, self._tasks[place], tries, place in self._out, until))
            dues += due.values()
        return Taken(tasks, min(dues, default=None))

    async def begin(self, tasks: Sequence[QueuedTask]) -> None:
        """See `TaskQueue.begin`."""
        self._out |= {(one.slot, one.task_id) for one in tasks}

    async def settle(self, done: Sequence[Done], later: Sequence[Later], now_ms: int) -> None:
        """See `TaskQueue.settle`."""
        for one in done:
            place = (one.slot, one.task_id)
            if self._tasks.pop(place, None) is not None:
                self._due[one.slot, one.provider].pop(one.task_id, None)
                self._tries.pop(place, None)
                self._out.discard(place)
                self._over[place] = now_ms + self._kept_ms
                if one.sent:
                    self.sent.append(one.task_id)
        for wait in later:
            place = (wait.slot, wait.task_id)
            if place in self._tasks:
                self._due[wait.slot, wait.provider][wait.task_id] = wait.due_at
                self._out.discard(place)
                self._tries[place] = self._tries.get(place, 0) + wait.counted

    async def waiting(self, slots: Sequence[int], provider: str) -> int:
        """See `TaskQueue.waiting`."""
        return sum(len(self._due.get((slot, provider), ())) for slot in slots)


class KeptLog:
    """`LogAppender` that keeps everything, and the device log of `WholeDevices`."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See `LogAppender.append`."""
        first = len(self.records)
        self.records += records
        return list(range(first, len(self.records)))
