"""A bounded workload of correct clients over real sockets, while a test breaks the stack underneath.

Several users with two devices each talk in groups and direct chats. Every payload is unique; every call
goes into a history. One device of a user stays connected, the other comes and goes or sleeps from the
start to the end. Owners add and remove members (one change of a group at a time, each answered before the
next, sends racing with them); some sends are given up on (unknown outcome); a probe reads whole mailboxes
with a new device all the time. `settle` heals, waits for every answer and repeats sends under their ids.

Invariants: the plan is a function of the seed; everything is bounded: rate, unanswered sends, duration.
What is right or wrong is decided in ``evidence``.

Spec: §3 to §7.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

import aiohttp

from qim_streams.client import ClientOptions
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import AdmissionRefused, ClientStopped
from qim_streams.testing.history import HistoryWriter
from qim_streams.wire.frames import Event
from qim_streams.wire.frames_sessions import PullSessionList, SessionList
from tests.support.device import Device, Target
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, WireError, pull_range

HEAL_S = 90.0
WAITING_MAX = 150  # unanswered sends of one device; more are not made
BRISK = ClientOptions(
    answer_ms=6_000, backoff_base_ms=100, backoff_cap_ms=1_500, checkpoint_interval_ms=5_000
)
TROUBLE = (WireError, aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the workload is. `run` makes ids unique on a shared stack; `silent` users never connect."""

    run: str
    seed: int
    users: int = 8
    silent: int = 0
    groups: int = 3
    rate: float = 60.0  # messages a second, of all
    body_bytes_max: int = 500
    change_every_s: float = 0.7  # per group
    give_up_share: float = 0.03
    probe_every_s: float = 0.5
    hot_tier_forgets: bool = False  # then W may go back and a cursor may be refused
    options: ClientOptions = BRISK

    def user(self, number: int) -> str:
        """A user's id."""
        return f"{self.run}-u{number}"


@dataclass(slots=True)
class Group:
    """A group and who is in it as far as its (only) changer knows. The owner is `core[0]`."""

    conversation_id: str
    core: list[str]  # stay
    guests: list[str]  # come and go
    present: set[str]


@dataclass(frozen=True, slots=True)
class Probe:
    """A whole mailbox up to `sync_to_seq` as a new device read it while things went wrong."""

    user: str
    trim: int
    sync_to_seq: int
    events: tuple[Event, ...]


class Traffic:
    """The running workload. Use as a context manager: entering connects everybody and makes the groups."""

    def __init__(self, address: StackAddress, plan: Plan, history: HistoryWriter) -> None:
        self.address, self.plan, self.history = address, plan, history
        self.random = random.Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.probes: list[Probe] = []
        self.problems: list[str] = []
        self.users = [plan.user(number) for number in range(plan.users)]
        self.silent = [plan.user(number) for number in range(plan.users, plan.users + plan.silent)]
        self.groups: list[Group] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._http: aiohttp.ClientSession | None = None
        self.devices: list[Device] = []
        self.sleepers: list[Device] = []

    async def __aenter__(self) -> Self:
        print(f"traffic {self.plan.run}: seed {self.plan.seed}")
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        for number, user in enumerate(self.users):
            for kind in ("steady", "sleeper" if number % 2 else "coming"):
                self.devices.append(Device(self, user, kind, self._http))
        try:
            await self._gather_everybody()
        except BaseException:
            await self.__aexit__()
            raise
        self.sleepers = [device for device in self.devices if device.kind == "sleeper"]
        for device in self.sleepers:
            await device.close()
        jobs = [self._talk(), self._probe(), *(self._change(group) for group in self.groups)]
        jobs += [self._come_and_go(device) for device in self.devices if device.kind == "coming"]
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return self

    async def _gather_everybody(self) -> None:
        for device in self.devices:
            await device.open()
        await asyncio.gather(*(device.client.wait_online(HEAL_S) for device in self.devices))
        await self._make_groups()

    async def __aexit__(self, *_: object) -> None:
        await self._stop_jobs()
        for device in self.devices:
            await device.close()
        if self._http is not None:
            await self._http.close()
        self.history.close()

    # -- what a test waits for

    async def more_acks(self, count: int, within_s: float = 60.0) -> None:
        """Until `count` more sends are acknowledged: the stack makes progress."""
        goal = self.counts["ok"] + count
        await eventually(lambda: self._checked(self.counts["ok"] >= goal), within_s, f"{count} more acks")

    async def until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Keep talking until a condition holds."""
        await eventually(lambda: self._checked(condition()), within_s, what)

    async def for_seconds(self, seconds: float) -> None:
        """Keep talking for a while."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        await eventually(lambda: self._checked(loop.time() >= end_s), seconds + 10, "time to pass")

    def _checked(self, value: object) -> object:
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        return value

    # -- the end

    async def settle(self) -> None:
        """Stop talking, bring every device back, wait for every answer, repeat some sends by their ids."""
        self.history.mark("healing")
        await self._stop_jobs()
        for device in self.devices:
            await device.open()
        await asyncio.gather(*(device.client.wait_online(HEAL_S) for device in self.devices))
        await eventually(
            lambda: all(len(device.client.session.sends) == 0 for device in self.devices),
            HEAL_S,
            "every send to be answered",
        )
        await asyncio.gather(*(self._repeat(device) for device in self.devices))
        self.history.mark("healed")

    async def checkpoint(self) -> None:
        """Every device pulls up to the watermark: whatever a push missed is there afterwards. Who was told
        to rebuild has read the histories, too."""
        await asyncio.gather(*(device.client.checkpoint(HEAL_S) for device in self.devices))
        await eventually(
            lambda: not any(device.client.rebuild_pending for device in self.devices),
            HEAL_S,
            "every rebuild to end",
        )

    async def _repeat(self, device: Device) -> None:
        """The same ids again: answered ones (some) and those whose outcome nobody knows (half of them)."""
        mine = [one for one in device.said.values() if one.outcome in ("ok", "info")]
        unknown = [one for one in mine if one.outcome == "info"]
        again = unknown[::2] + self.random.sample(mine, min(len(mine), 5))
        await asyncio.gather(*(device.repeat(one) for one in {one.key: one for one in again}.values()))

    async def _stop_jobs(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for result in ended:
            if isinstance(result, Exception):
                raise result

    # -- jobs

    async def _talk(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self.random.expovariate(self.plan.rate), loop.time() - 1.0)
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            device = self.random.choice(self.devices)
            if device.is_open and device.waiting < WAITING_MAX:
                target = self._target(device.user)
                device.say(target, give_up=self.random.random() < self.plan.give_up_share)

    def _target(self, user: str) -> Target:
        if self.groups and self.random.random() < 0.7:
            inside = [group for group in self.groups if user in group.present]
            if inside and self.random.random() < 0.97:
                return Target(self.random.choice(inside).conversation_id, None)
            return Target(self.random.choice(self.groups).conversation_id, None)
        others = [one for one in (*self.users, *self.silent) if one != user]
        # A few chats are busy, many are quiet.
        return Target(None, others[min(int(self.random.expovariate(0.5)), len(others) - 1)])

    async def _come_and_go(self, device: Device) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            await device.close()
            await asyncio.sleep(self.random.uniform(0.1, 2.5))
            await device.open()

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * self.plan.probe_every_s)
            user = self.random.choice(self.users + self.silent)
            try:
                await self.probe(user)
            except TROUBLE:
                self.counts["probes_failed"] += 1  # the stack is being broken

    async def probe(self, user: str, limit: int | None = None) -> Probe:
        """Read a whole mailbox with a new device; WireError and the like when that does not work now.

        `limit`: entries per pull; None: by chance.
        """
        limit = limit or self.random.choice((20, 50, 200, 1_000))
        async with WireClient(self.address.require_url(), self.address.token(user), "probe") as client:
            auth = await client.auth()
            pulled = await pull_range(client, auth.trim_watermark, auth.sync_to_seq, limit)
            await client.sync_complete(auth.sync_to_seq)
        self.problems.extend(pulled.problems)
        probe = Probe(user, auth.trim_watermark, auth.sync_to_seq, tuple(pulled.events))
        self.probes.append(probe)
        self.counts["probes"] += 1
        return probe

    async def listed(self, user: str) -> SessionList:
        """The first page of a user's list by a new device; WireError and the like when it does not come."""
        async with WireClient(self.address.require_url(), self.address.token(user), "reader") as client:
            auth = await client.auth()
            await client.sync_complete(auth.sync_to_seq)
            return await client.request(PullSessionList(client.next_rid()), SessionList)

    # -- groups

    async def _make_groups(self) -> None:
        for number in range(self.plan.groups):
            first = number % len(self.users)
            turned = self.users[first:] + self.users[:first]
            # The first group has everybody, the silent ones too; the others are smaller.
            core = turned + self.silent if number == 0 else turned[: max(2, len(turned) // 3)]
            guests = [user for user in turned if user not in core]
            group = Group(f"{self.plan.run}-g{number}", core, guests, set(core))
            if number == 0:
                group.guests, group.core = group.core[2:4] + self.silent[:1], group.core[:2]
            await self._create(group)
            self.groups.append(group)

    async def _create(self, group: Group) -> None:
        owner = self.steady(group.core[0])
        members = sorted(group.present - {owner.user})
        value = {"conversation": group.conversation_id, "members": [owner.user, *members]}
        call = self.history.invoke(owner.name, "create", value)
        state = await owner.client.groups.create(members, conversation_id=group.conversation_id)
        self.history.complete(call, owner.name, "create", "ok", {"version": state.version})

    async def _change(self, group: Group) -> None:
        while group.guests:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * self.plan.change_every_s)
            guest = self.random.choice(group.guests)
            if guest not in group.present:
                await self._one_change(group, "join", guest, self._adding(group, guest))
                group.present.add(guest)
            else:
                group.present.discard(guest)
                leaving = guest in self.users and self.random.random() < 0.4
                how = self._leaving(group, guest) if leaving else self._removing(group, guest)
                await self._one_change(group, "leave", guest, how)

    def _adding(self, group: Group, guest: str) -> Callable[[], Awaitable[int]]:
        async def add() -> int:
            owner = self.steady(group.core[0]).client
            return (await owner.groups.add(group.conversation_id, [guest])).version

        return add

    def _removing(self, group: Group, guest: str) -> Callable[[], Awaitable[int]]:
        async def remove() -> int:
            owner = self.steady(group.core[0]).client
            return (await owner.groups.remove(group.conversation_id, [guest])).version

        return remove

    def _leaving(self, group: Group, guest: str) -> Callable[[], Awaitable[int]]:
        async def leave() -> int:
            try:
                return (await self.steady(guest).client.groups.leave(group.conversation_id)).version
            except AdmissionRefused as refused:
                # The first try may have worked and lost its answer: nobody else changes this group.
                if refused.code != "NOT_MEMBER":
                    raise
                owner = self.steady(group.core[0]).client
                return (await owner.groups.get(group.conversation_id)).version

        return leave

    async def _one_change(
        self, group: Group, kind: str, user: str, change: Callable[[], Awaitable[int]]
    ) -> None:
        """Repeat until answered, also over the end of the workload: an unknown change cannot be judged."""
        value = {"conversation": group.conversation_id, "user": user}
        call = self.history.invoke(group.core[0], kind, value)

        async def repeated() -> None:
            while True:
                with contextlib.suppress(TimeoutError):
                    version = await change()
                    self.history.complete(call, group.core[0], kind, "ok", {"version": version})
                    self.counts["changes"] += 1
                    return

        work = asyncio.create_task(repeated())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            async with asyncio.timeout(HEAL_S):
                await work
            raise
        except ClientStopped as stopped:
            raise AssertionError(f"a client gave up: {stopped}") from stopped

    def steady(self, user: str) -> Device:
        """The device of a user that is always connected."""
        return next(one for one in self.devices if one.user == user and one.kind == "steady")
