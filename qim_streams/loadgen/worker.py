"""A generator process: carries out the commands of `fleet`, one at a time, and reports progress.

Commands: connect, groups, open, run, settle, pull, offline, account, stop. The pipe carries (name,
arguments) one way and (``done`` or ``failed`` or ``progress``, value) the other.
"""

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Awaitable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import uvloop

from qim_streams.client.discovery import StackAddress
from qim_streams.errors import ConfigError, ProtocolError, QimError
from qim_streams.loadgen.device import Device
from qim_streams.loadgen.generator import Generator
from qim_streams.loadgen.groups import make_group
from qim_streams.loadgen.message import BODY_BYTES_MIN
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.plan import Plan
from qim_streams.loadgen.sender import open_chats, play

LOGINS_AT_ONCE, GROUPS_AT_ONCE, READERS_AT_ONCE = 32, 4, 16
TRIES = 10


class Task(NamedTuple):
    """What a process is told at its start. It travels through a pipe, never on a command line."""

    options: BenchOptions
    plan: Plan
    process: int
    address: StackAddress
    run: int
    mailbox_shards: int


class Worker:
    """The commands. Each method named like a command takes its arguments and returns its value."""

    def __init__(self, task: Task, pipe: Connection) -> None:
        self._pipe = pipe
        self._all = Generator(
            task.options, task.plan, task.process, task.address, task.run, task.mailbox_shards
        )
        self._mine = range(task.process, task.plan.connections, task.plan.processes)

    def say(self, value: Any) -> None:
        """Report progress."""
        self._pipe.send(("progress", value))

    async def connect(self) -> int:
        """Sign every device of this process on; how many."""
        gate, made = asyncio.Semaphore(LOGINS_AT_ONCE), 0

        async def one(user: int) -> None:
            nonlocal made
            async with gate:
                self._all.devices[user] = await self._signed_on(user)
            made += 1
            if made % 500 == 0:
                self.say({"connected": made})

        await asyncio.gather(*(one(user) for user in self._mine))
        return made

    async def _signed_on(self, user: int) -> Device:
        for attempt in range(TRIES):
            device = self._all.new_device(user)
            try:
                await device.connect()
                return device
            except (OSError, TimeoutError, ProtocolError) as failure:
                await device.close()
                last = failure
                await asyncio.sleep(0.1 * 2 ** min(attempt, 5))
        raise ConfigError(f"user {user} cannot sign on after {TRIES} tries: {last}; see the gateway's log")

    async def groups(self) -> int:
        """Make the groups whose first online member is here; how many."""
        plan, gate, made = self._all.plan, asyncio.Semaphore(GROUPS_AT_ONCE), 0

        async def one(number: int, owner: int) -> None:
            nonlocal made
            async with gate:
                await make_group(self._all.devices[owner], plan, number, self.say)
            made += 1

        wanted = []
        for number, conversation in enumerate(plan.conversations):
            if not conversation.direct:
                owner = next(user for user in conversation.members if user < plan.connections)
                if owner in self._mine:
                    wanted.append(one(number, owner))
        await asyncio.gather(*wanted)
        return made

    async def open(self) -> int:
        """Send one message in every direct chat whose first member is here, so that all exist."""
        return await open_chats(self._all, self._mine, BODY_BYTES_MIN)

    async def run(self, start_ns: int) -> dict[str, Any]:
        """Play the schedule from `start_ns` on; figures of the measured part."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(200_000, 50, 1_000)
        return await play(self._all, start_ns, self.say)

    async def settle(self) -> tuple[int, int, int]:
        """(sends without an answer, deliveries so far, deliveries that the acks promise) to online users."""
        own = self._all
        return own.waiting, own.ledger.delivered + own.ledger.pulled, own.promised

    async def pull(self, users: list[int]) -> int:
        """Read the mailboxes of own users from the start of the run; how many deliveries that found."""
        before, self._all.reading = self._all.ledger.pulled, True
        gate = asyncio.Semaphore(READERS_AT_ONCE)

        async def one(device: Device) -> None:
            async with gate:
                await self._read(device.user, device.start_seq)

        await asyncio.gather(*(one(self._all.devices[user]) for user in users))
        return self._all.ledger.pulled - before

    async def offline(self, users: list[int]) -> int:
        """Read the whole mailboxes of users who were not online; how many deliveries that found."""
        before, self._all.reading = self._all.ledger.pulled, True
        gate = asyncio.Semaphore(READERS_AT_ONCE)

        async def one(user: int) -> None:
            async with gate:
                await self._read(user, -1)

        await asyncio.gather(*(one(user) for user in users))
        return self._all.ledger.pulled - before

    async def _read(self, user: int, after_seq: int) -> None:
        """A fresh device pulls what is above `after_seq`."""
        device = self._all.new_device(user)
        device.device_id = "reader"
        for attempt in range(TRIES):
            try:
                await device.connect()
                assert device.auth is not None
                await device.pull(after_seq, device.auth.sync_to_seq)
                break
            except (OSError, TimeoutError, ProtocolError):
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.2)
        await device.close()

    async def account(self) -> dict[str, Any]:
        """Everything that the verdict and the report need."""
        own = self._all
        return {
            "ledger": own.ledger,
            "ack": own.ack_by_second,
            "e2e": own.e2e_by_second,
            "late": own.late,
            "samples": own.samples,
            "noted": own.noted,
            "sent": own.measured_sent,
            "acked_at": own.acked_at,
            "delivered_at": own.delivered_at,
        }

    async def stop(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(device.close() for device in self._all.devices.values()))
        await asyncio.sleep(0)

    async def keep_alive(self) -> None:
        """Ping now and then; ends when cancelled."""
        while True:
            devices = list(self._all.devices.values())
            intervals = [one.auth.next_ping_interval_ms for one in devices if one.auth is not None]
            await asyncio.sleep(max(0.05, min(intervals, default=1_000) / 2_000))
            for device in devices:
                device.tick()


def main(pipe: Connection, task: Task) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    logging.basicConfig(level=logging.WARNING)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_serve(pipe, task))


async def _serve(pipe: Connection, task: Task) -> None:
    worker = Worker(task, pipe)
    alive = asyncio.create_task(worker.keep_alive())
    try:
        while True:
            try:
                name, arguments = await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            pipe.send(await _answer(getattr(worker, name)(*arguments)))
            if name == "stop":
                return
    finally:
        alive.cancel()


async def _answer(work: Awaitable[Any]) -> tuple[str, Any]:
    try:
        return "done", await work
    except (QimError, OSError, TimeoutError) as failure:
        return "failed", f"{type(failure).__name__}: {failure}"
