"""WriterLinks: how a gateway reaches the writer of a conversation.

The owner of an Outbox partition is looked up in the lease store and remembered until a writer says that it
is not the owner or its link breaks. A request is repeated, at the then owner, until its deadline: sends are
safe to repeat because of their client_message_id, group commands because they are idempotent. A writer that
cannot be connected to is left alone for a while that grows, with jitter, or until the next life of it, which
listens before it takes a lease, holds one.

Invariants: every call is answered exactly once, at the latest shortly after its deadline; at most `calls_max`
calls and `bytes_max` bytes wait; one connection per writer.

Spec: §3.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from qim_streams.commit import rpc_protocol
from qim_streams.commit.outcome import UNKNOWN, SendOutcome, SendRequest, SendStatus, refused
from qim_streams.commit.rpc_link import Call, WriterLink
from qim_streams.commit.rpc_protocol import GroupStatus, Op
from qim_streams.errors import AdmissionRefused, Outcome, StoreError, StoreUnavailable
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.ownership.ports import LeaseStore
from qim_streams.placement import outbox_partition
from qim_streams.tls import LinkTls

log = logging.getLogger(__name__)

CALLS_MAX = 50_000
BYTES_MAX = 64 * 1024 * 1024
LOOKUP_PAUSE_S = (0.02, 0.1)  # between look-ups while a partition has no owner: first, at most
DOWN_S = (0.05, 1.0)  # a writer that could not be reached is left alone: first, at most
SWEEP_S = 0.1  # how late a deadline may be noticed
NO_OWNER_RETRY_MS = 1_000


@dataclass(slots=True)
class _Down:
    """An address that could not be reached."""

    until_s: float
    pause_s: float


class WriterLinks:
    """All writers, as one. Call `start` on the event loop first and `close` last."""

    def __init__(
        self,
        leases: LeaseStore,
        secret: bytes,
        node: str,
        outbox_partitions: int,
        *,
        calls_max: int = CALLS_MAX,
        bytes_max: int = BYTES_MAX,
        rng: random.Random | None = None,
        resource: str = "ob",
        tls: LinkTls | None = None,
    ) -> None:
        """`resource`: what the leases of the partitions are called, before the colon. `tls` None: none."""
        self._tls = tls
        self._leases, self._secret, self._node, self._partitions = leases, secret, node, outbox_partitions
        self._calls_max, self._bytes_max, self._rng = calls_max, bytes_max, rng or random.Random()
        self._resource = resource
        self._owner: dict[int, str] = {}  # partition -> address
        self._lives: dict[int, tuple[str, int]] = {}  # partition -> node and boot of its last holder
        self._links: dict[str, WriterLink] = {}
        self._down: dict[str, _Down] = {}
        self._homeless: dict[int, Call] = {}  # waiting for a look-up
        self._live: dict[int, Call] = {}
        self._bytes = 0
        self._numbers = itertools.count(1)
        self._closing = False
        self._looked_up_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch deadlines."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="writer-links")

    async def close(self) -> None:
        """End all connections; calls without an answer end as at their deadline."""
        self._closing = True
        for task in (self._sweeper, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._sweeper = self._looking = None
        for link in list(self._links.values()):
            await link.close()
        for number in list(self._live):
            self._end(number, None)

    @property
    def waiting(self) -> int:
        """Calls without an answer."""
        return len(self._live)

    # -- requests

    def submit(self, request: SendRequest, timeout_s: float, reply: Callable[[SendOutcome], object]) -> None:
        """Send a message; `reply` is called on the loop, exactly once, with a final outcome.

        COMMITTED, REFUSED (nothing was committed), or UNKNOWN after `timeout_s`.
        """
        partition = outbox_partition(request.tenant_id, request.conversation_id, self._partitions)
        nbytes = len(request.body) + 512
        if not self._has_room(nbytes):
            reply(refused("OVERLOADED", "too many unanswered sends in this process", 500))
            return

        deadline_s = asyncio.get_running_loop().time() + timeout_s
        # The call is handed to its answer, which does not hold it: a cycle per message would be left to the
        # garbage collector (a quarter of this process's CPU under load).
        answer = partial(self._answer_send, reply)
        self._begin(Call(Op.SEND, tuple(request), partition, deadline_s, nbytes, answer))

    async def send(self, request: SendRequest, timeout_s: float) -> SendOutcome:
        """`submit` for one caller that waits."""
        future: asyncio.Future[SendOutcome] = asyncio.get_running_loop().create_future()

        def reply(outcome: SendOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.submit(request, timeout_s, reply)
        return await future

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """Execute a group command and return the state of the group.

        AdmissionRefused: the writer's answer, or OVERLOADED here. StoreUnavailable after `timeout_s`, with
        outcome NOT_APPLIED or UNKNOWN; repeating the command is safe in both cases.
        """
        partition = outbox_partition(command.tenant_id, command.conversation_id, self._partitions)
        nbytes = 512 + sum(map(len, command.user_ids))
        fields = await self.call(Op.GROUP, rpc_protocol.group_args(command), partition, nbytes, timeout_s)
        state = rpc_protocol.read_group_answer(fields)
        if isinstance(state, GroupState):
            return state
        _, code, detail, retry_after_ms = state
        raise AdmissionRefused(code, detail, retry_after_ms=retry_after_ms)

    async def call(
        self, op: int, args: tuple[object, ...], partition: int, nbytes: int, timeout_s: float
    ) -> list[Any]:
        """The fields of the answer of the partition's owner. `nbytes`: about what it takes in a frame.

        AdmissionRefused: OVERLOADED here. StoreUnavailable after `timeout_s`, with outcome NOT_APPLIED or
        UNKNOWN. It is repeated at the next owner when one is lost, so it must be safe to repeat.
        """
        if not self._has_room(nbytes):
            raise AdmissionRefused("OVERLOADED", "too many unanswered requests here", retry_after_ms=500)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any] | None] = loop.create_future()

        def answer(_: Call, fields: list[Any] | None) -> None:
            if not future.done():
                future.set_result(fields)

        call = Call(op, args, partition, loop.time() + timeout_s, nbytes, answer)
        self._begin(call)
        fields = await future
        if fields is None:
            outcome = Outcome.UNKNOWN if call.handed or call.unsure else Outcome.NOT_APPLIED
            raise StoreUnavailable("no owner of the partition answered in time", outcome)
        return fields

    def _has_room(self, nbytes: int) -> bool:
        return len(self._live) < self._calls_max and self._bytes + nbytes <= self._bytes_max

    def _answer_send(
        self, reply: Callable[[SendOutcome], object], call: Call, fields: list[Any] | None
    ) -> None:
        reply(self._send_outcome(call, fields))

    def _send_outcome(self, call: Call, fields: list[Any] | None) -> SendOutcome:
        if fields is not None:
            outcome = rpc_protocol.read_outcome(fields)
            # "Not now" is no proof about a writer that was asked before and died.
            temporary = outcome.status is SendStatus.REFUSED and outcome.retry_after_ms is not None
            return UNKNOWN if temporary and call.unsure else outcome
        if call.handed or call.unsure:
            return UNKNOWN
        return refused("SHARD_MOVED", "no writer owns the conversation right now", NO_OWNER_RETRY_MS)

    # -- the way of a call

    def _begin(self, call: Call) -> None:
        number = call.number = next(self._numbers)
        self._bytes += call.nbytes
        self._live[number] = call
        self._route(number, call)

    def _route(self, number: int, call: Call) -> None:
        """Give a call to the link of the partition's owner, or let it wait for a look-up."""
        address = self._owner.get(call.partition)
        link = None if address is None else self._link(address)
        call.link = link
        if link is None:
            self._homeless[number] = call
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_up(), name="writer-look-up")
            return
        link.push(call)

    def _link(self, address: str) -> WriterLink | None:
        link = self._links.get(address)
        if link is not None:
            return link
        down = self._down.get(address)
        if down is not None and asyncio.get_running_loop().time() < down.until_s:
            return None
        link = WriterLink(address, self._secret, self._node, self._answered, self._ended, self._tls)
        self._links[address] = link
        return link

    def _answered(self, call: Call, fields: list[Any]) -> None:
        not_owner = fields[0] == (SendStatus.NOT_OWNER if call.op == Op.SEND else GroupStatus.NOT_OWNER)
        if not not_owner:
            self._end(call.number, fields)
            return
        call.handed = False  # this writer has done nothing
        self._owner.pop(call.partition, None)
        self._route(call.number, call)

    def _ended(self, link: WriterLink, calls: list[Call]) -> None:
        """A link is gone: look its partitions up again, and leave the address alone if it never worked."""
        self._links.pop(link.address, None)
        for call in calls:
            call.unsure, call.handed = call.unsure or call.handed, False
        if self._closing:
            return
        if link.connected:
            self._down.pop(link.address, None)
        else:
            before = self._down.get(link.address)
            pause_s = min(DOWN_S[1], 2 * before.pause_s) if before else DOWN_S[0]
            until_s = asyncio.get_running_loop().time() + pause_s * (0.5 + self._rng.random())
            self._down[link.address] = _Down(until_s, pause_s)
        for partition in [p for p, address in self._owner.items() if address == link.address]:
            del self._owner[partition]
        for call in calls:
            if call.number in self._live:
                self._route(call.number, call)

    def _end(self, number: int, fields: list[Any] | None) -> None:
        call = self._live.pop(number)
        if call.link is None:
            self._homeless.pop(number, None)
        self._bytes -= call.nbytes
        call.answer(call, fields)

    # -- in the background

    async def _look_up(self) -> None:
        """Find owners until nobody waits for one."""
        pause_s = LOOKUP_PAUSE_S[0]
        try:
            # A writer that says "not me" while it still holds the lease must not be asked in a tight loop.
            await asyncio.sleep(self._looked_up_s + pause_s - asyncio.get_running_loop().time())
            while self._homeless:
                if not await self._look_up_once():
                    await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
                    pause_s = min(LOOKUP_PAUSE_S[1], 2 * pause_s)
        finally:
            self._looking = None

    async def _look_up_once(self) -> bool:
        """Whether every waiting call found a link."""
        self._looked_up_s = asyncio.get_running_loop().time()
        partitions = sorted({call.partition for call in self._homeless.values()})
        try:
            holders = await self._leases.holders([f"{self._resource}:{p}" for p in partitions])
        except StoreError as error:
            log.warning("owners of %d partitions not looked up: %s", len(partitions), error)
            return False
        for partition, holder in zip(partitions, holders, strict=True):
            if holder is not None:
                self._owner[partition] = holder.address
                life = holder.node, holder.boot
                if self._lives.get(partition) != life:
                    self._lives[partition] = life
                    self._down.pop(holder.address, None)  # that was another life
        waiting, self._homeless = self._homeless, {}
        for number, call in waiting.items():
            self._route(number, call)
        return not self._homeless

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            for call in [one for one in self._live.values() if one.deadline_s <= now_s]:
                if call.link is not None:
                    call.link.forget(call)
                self._end(call.number, None)
