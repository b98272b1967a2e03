"""The notification stage on stores in memory, a clock that tests move, and a provider that they script."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from qim_streams.errors import StoreUnavailable
from qim_streams.log_ports import Outgoing, Poison
from qim_streams.mentions import NOBODY, Mentions
from qim_streams.notification.ports import Answer, Notification, Result
from qim_streams.notification.preparing import Preparer, Style
from qim_streams.notification.records import PushDevice, PushResult, PushTask, decode_result
from qim_streams.notification.registry import PushDevices
from qim_streams.notification.restoring import WholeDevices
from qim_streams.notification.results import ResultLog
from qim_streams.notification.sender import LaneBounds, ProviderLane
from qim_streams.notification.service import NotificationService, Terms
from qim_streams.records import MessageRecord
from qim_streams.sessions.badge_ports import Badge, BadgeQuery
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.state import UserConversationState
from qim_streams.spans.service import MessageSpans
from qim_streams.testing.memory_push import KeptLog, MemoryPushDevices, MemoryTaskQueue

START_MS = 1_760_000_000_000
CLAIM_MS, GRACE_MS, AGE_MAX_MS = 60_000, 2_000, 3_600_000
PROVIDERS = ("apns", "fcm")


class ScriptedProvider:
    """Counts what it is given; `answer` decides."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Notification] = []
        self.answer: Callable[[Notification], Answer] = lambda one: Answer(Result.SENT)
        self.gate = asyncio.Event()  # closed: calls hang
        self.gate.set()

    @property
    def per_target(self) -> Counter[tuple[str, bytes]]:
        """How many requests there were for each (device, message)."""
        return Counter((one.device_id, one.message_id) for one in self.seen)

    async def send(self, notification: Notification) -> Answer:
        """See `Provider.send`."""
        self.seen.append(notification)
        answer = self.answer(notification)
        await self.gate.wait()
        return answer

    async def close(self) -> None:
        """Nothing is open."""


class Messages:
    """Messages, marks and badges; `down` makes reading them fail, `uncounted` the count of badges."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], MessageRecord] = {}
        self.marks: dict[tuple[SessionUser, str], UserConversationState] = {}
        self.unread: dict[str, int] = {}
        self.down = self.uncounted = False

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See `MessageReader`."""
        if self.down:
            raise StoreUnavailable("down")
        return [None if (row := self.rows.get(one)) is None else row.encode() for one in wanted]

    async def states(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """See `StateReader`."""
        return [None if (row := self.marks.get(one)) is None else row.encode() for one in wanted]

    async def badges(self, wanted: Sequence[BadgeQuery]) -> list[Badge]:
        """See `BadgeReader`."""
        if self.uncounted:
            raise TimeoutError
        return [Badge(self.unread.get(one.user.user_id, 1), True) for one in wanted]


@dataclass(frozen=True)
class Record:
    """A consumed record."""

    key: bytes | None
    value: bytes | None
    offset: int


@dataclass(frozen=True)
class Batch:
    """A consumed batch of one partition."""

    partition: int
    records: Sequence[Record]
    previous_offset: int = -1


class Letters:
    """`PoisonSink`."""

    def __init__(self) -> None:
        self.poison: list[Poison] = []

    async def send(self, poison: Sequence[Poison]) -> None:
        """Keep them."""
        self.poison += poison


class Told(KeptLog):
    """The log of results; `down` makes it unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See `LogAppender.append`."""
        if self.down:
            raise StoreUnavailable("down")
        return await super().append(records)

    @property
    def results(self) -> list[PushResult]:
        """What was told, in order."""
        return [decode_result(one.value or b"") for one in self.records]


class NotificationWorld:
    """See the module text."""

    def __init__(self, *, in_flight_max: int = 64, repeat_unknown: bool = True) -> None:
        self.now_ms = START_MS
        self.spans: MessageSpans | None = None
        self.devices, self.log, self.messages = MemoryPushDevices(), KeptLog(), Messages()
        self.queue = MemoryTaskQueue(waiting_max=10_000, claim_ms=CLAIM_MS, kept_ms=2 * AGE_MAX_MS)
        self.providers = {name: ScriptedProvider(name) for name in PROVIDERS}
        self.letters = Letters()
        self.told = Told()
        self.bounds = LaneBounds(in_flight_max, 25_000, repeat_unknown)
        self.registry = PushDevices(
            self.devices, self.log, providers=PROVIDERS, mailbox_shards=8, now_ms=lambda: self.now_ms
        )
        self._seq = 0
        self._offset = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NotificationService]:
        """A worker with the only slot."""
        whole = WholeDevices(self.devices, None, 0)  # type: ignore[arg-type]  # whole, so its log is not read
        style = Style("New message", "You have a new message", 20, False, AGE_MAX_MS, 86_400)
        clock = lambda: self.now_ms  # noqa: E731 - a name for the clock
        preparer = Preparer(whole, self.messages, self.messages, self.messages, style, clock)
        slots: set[int] = set()
        lanes = [
            ProviderLane(
                one, self.queue, preparer, self.registry, ResultLog(self.told, 4), slots, self.bounds, clock,
                lambda: 0.5, self.spans,
            )
            for one in self.providers.values()
        ]  # fmt: skip
        self.lanes = lanes
        service = NotificationService(
            self.queue, whole, lanes, slots, self.letters, Terms(GRACE_MS, AGE_MAX_MS), clock, _fail
        )
        await service.open()
        await service.start_position(0)
        try:
            yield service
        finally:
            await service.close()

    async def device(self, user: str = "ben", name: str = "phone", provider: str = "apns") -> PushDevice:
        """A registered device."""
        device = PushDevice("acme", user, 64, name, provider, "", f"token of {user} {name}", 0)
        return await self.registry.register(device)

    def message(self, user: str = "ben", mentions: Mentions = NOBODY, body: bytes = b"hello") -> PushTask:
        """A message of ann to a user, and the task of his phone."""
        self._seq += 1
        message_id = self._seq.to_bytes(16, "big")
        extra = () if mentions is NOBODY else (0, mentions.encode())
        self.messages.rows["acme", "team", self._seq] = MessageRecord(
            self._seq, 1, "acme", "team", message_id, message_id, "ann", 128, "d", f"m{self._seq}", 1,
            self.now_ms, 0, 0, body, extra,
        )  # fmt: skip
        return PushTask(
            "acme", user, 64, "phone", message_id, "team", self._seq, "ann", self.now_ms, self.now_ms, 3
        )

    async def offer(self, service: NotificationService, *tasks: PushTask) -> None:
        """What the task log hands over."""
        records = [Record(one.key, one.encode(), self._offset + at) for at, one in enumerate(tasks)]
        self._offset += len(tasks)
        await service.handle([Batch(0, records)])

    async def settled(self) -> None:
        """Let everything run that runs without the clock moving on."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def pass_time(self, ms: int, step_ms: int = 500) -> None:
        """The clock moves on, and who waits for it looks again."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + step_ms)
            for lane in self.lanes:
                lane.wake()
            await self.settled()


def _fail(why: str, error: BaseException | None) -> NoReturn:
    raise AssertionError(why) from error
