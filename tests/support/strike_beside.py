"""What goes on beside the traffic of a strike, to be judged after it: a twin tenant, old cursors, poison.

* `Twin`: another tenant with the same users and the same group, whose words nobody else may see.
* `OldCursors`: cursors from before the strike, with which devices come back after it.
* `poison_logs`: records that nobody can decode, between the good ones.

Spec: §2, §7, §11. Invariants I9 I15 I16.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import aiohttp

from qim_streams.client import QimClient
from qim_streams.errors import QimError
from qim_streams.wire.frames import Event
from tests.support.checkers import Coordinates, CursorAnswer
from tests.support.dumps import inject
from tests.support.logs import DISPATCH, OUTBOX, ends
from tests.support.stack import StackProcess
from tests.support.traffic import BRISK, HEAL_S
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, WireError, pull_range

TWIN: Final = "twin"
TWIN_MARK: Final = b"other-tenant|"
TALK_EVERY_S: Final = 0.15
POISON_READERS: Final[Mapping[str, tuple[str, ...]]] = {
    OUTBOX: ("fanout-coordinator", "history-archiver"),
    DISPATCH: ("mailbox-node",),
}


def poison_logs(stack: StackProcess, run: str, number: int) -> dict[Coordinates, bytes]:
    """Two records into a partition of each log; where they lie."""
    brokers, found = stack.client["brokers"], dict[Coordinates, bytes]()
    for topic in POISON_READERS:
        partitions = ends(brokers, topic)
        partition = sorted(partitions)[number % min(4, len(partitions))]
        found |= inject(brokers, topic, partition, [f"poison {run} {n}".encode() for n in (1, 2)])
    return found


class Twin:
    """Two users of another tenant who talk in a group with the ids of the traffic's first one."""

    def __init__(self, stack: StackProcess, run: str) -> None:
        self._address = replace(stack.address(), tenant=TWIN)
        self.users = (f"{run}-u0", f"{run}-u1")
        self._group = f"{run}-g0"
        self._clients: list[QimClient] = []
        self._talking: asyncio.Task[None] | None = None
        self.acked: set[bytes] = set()
        self.open: set[bytes] = set()

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            await self._leave()
            raise
        self._talking = asyncio.create_task(self._talk())
        return self

    async def _enter(self) -> None:
        for user in self.users:
            client = QimClient(self._address.require_url(), self._address.token(user), "phone", options=BRISK)
            self._clients.append(client)
            await client.connect(HEAL_S)
        await self._clients[0].groups.create([self.users[1]], conversation_id=self._group)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._leave()

    async def _leave(self) -> None:
        for client in self._clients:
            await client.close()

    async def stop(self) -> None:
        """Say no more; what was being said has an unknown outcome."""
        if self._talking is not None:
            self._talking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._talking
            self._talking = None

    async def _talk(self) -> None:
        number = 0
        while True:
            number += 1
            body = TWIN_MARK + b"%d" % number
            self.open.add(body)
            with contextlib.suppress(TimeoutError, QimError):
                to = {"to_user_id": self.users[1]} if number % 3 == 0 else {"conversation_id": self._group}
                await self._clients[0].send(body, timeout_s=HEAL_S, **to)
                self.acked.add(body)
            await asyncio.sleep(TALK_EVERY_S)

    async def read(self) -> list[tuple[str, str, bytes]]:
        """(tenant, user, body) of both mailboxes, once everything acknowledged is there or it is too late."""
        found: list[tuple[str, str, bytes]] = []

        async def complete() -> bool:
            nonlocal found
            try:
                found = [row for user in self.users for row in await self._mailbox(user)]
            except (WireError, aiohttp.ClientError, OSError, TimeoutError):
                return False
            return all((TWIN, user, body) in found for user in self.users for body in self.acked)

        with contextlib.suppress(AssertionError):
            await eventually(complete, HEAL_S, "the twin's mailboxes")
        return found

    async def _mailbox(self, user: str) -> list[tuple[str, str, bytes]]:
        token = self._address.token(user)
        async with WireClient(self._address.require_url(), token, "probe") as client:
            auth = await client.auth()
            pulled = await pull_range(client, auth.trim_watermark, auth.sync_to_seq)
        return [(TWIN, user, event.message.body) for event in pulled.events]

    def problems(self, found: list[tuple[str, str, bytes]]) -> list[str]:
        """I1, I2, I3 in the small: each acknowledged word once with both, no other."""
        bad = []
        for user in self.users:
            words = [body for _, who, body in found if who == user]
            if len(set(words)) != len(words):
                bad.append(f"I3: {user} of {TWIN} has something twice")
            bad += [f"I1: {user} of {TWIN} lacks {body!r}" for body in self.acked - set(words)]
            bad += [f"I2: {user} of {TWIN} has {body!r}" for body in set(words) - self.open]
        return bad


@dataclass(slots=True)
class _Held:
    user: str
    cursor: str
    position: int
    epoch: int


@dataclass(slots=True)
class OldCursors:
    """Cursors of some users, taken before a strike. `problems`: what was wrong with pulling from them."""

    stack: StackProcess
    held: list[_Held] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    async def take(self, users: Sequence[str]) -> None:
        """One cursor of each, through a device of its own."""
        for user in users:
            async with self._client(user, "old") as client:
                auth = await client.auth()
                ready = await client.sync_complete(auth.sync_to_seq)
            self.held.append(_Held(user, ready.cursor, auth.sync_to_seq, auth.shard_epoch))

    async def ask(self, mailboxes: Mapping[str, Sequence[Event]]) -> list[CursorAnswer]:
        """Come back with each, when nothing changes any more; what lies above is pulled and compared."""
        answers = []
        for one in self.held:
            before = await self._granted(one.user)
            answer = await self._come_back(one, mailboxes[one.user])
            if await self._granted(one.user) == before:  # else nobody knows under which it was answered
                epoch, trim = before
                answers.append(CursorAnswer(one.user, one.position, one.epoch, trim, epoch, answer))
        return answers

    async def _come_back(self, one: _Held, mailbox: Sequence[Event]) -> str:
        try:
            await self._pull(one, one.cursor, mailbox)
        except WireError as error:
            if error.frame is None:
                raise
            if error.frame.new_cursor is not None:
                await self._pull(one, error.frame.new_cursor, mailbox)
            return error.frame.name
        return "AUTH_OK"

    async def _pull(self, one: _Held, cursor: str, mailbox: Sequence[Event]) -> None:
        async with self._client(one.user, "old") as client:
            auth = await client.auth(cursor)
            pulled = await pull_range(client, auth.after_seq, auth.sync_to_seq)
        got = [event.event_id for event in pulled.events]
        if auth.after_seq > one.position:
            self.problems.append(f"I8: {one.user}'s cursor at {one.position} became {auth.after_seq}")
        if got != [event.event_id for event in mailbox if event.mailbox_seq > auth.after_seq]:
            self.problems.append(f"I8: {one.user} came back at {auth.after_seq} and got other events")
        self.problems += pulled.problems

    async def _granted(self, user: str) -> tuple[int, int]:
        """Epoch and trim as a new device is told them."""
        async with self._client(user, "new") as client:
            auth = await client.auth()
        return auth.shard_epoch, auth.trim_watermark

    def _client(self, user: str, device: str) -> WireClient:
        address = self.stack.address()
        return WireClient(address.require_url(), address.token(user), device)
