"""The open loop: sends what is due, whatever was answered, and says how late it was itself.

Every turn sends all messages whose time has come, writes each socket once, and lets the event loop read.
Nothing here waits for an answer. A message whose device is signing on again waits on the device; its
latency runs from its intended time all the same.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qim_streams.loadgen.device import Device
from qim_streams.loadgen.generator import Generator
from qim_streams.loadgen.schedule import ARRIVALS
from qim_streams.loadgen.traffic import Draw, Traffic

TURN_MESSAGES_MAX = 200  # then sockets are written and read
WAITING_MAX = 200_000  # unanswered sends of a process: memory, far above what a server that works needs
SLEEP_S = 0.001
OPEN_WINDOW = 32  # unanswered first messages of a process
OPEN_TIMEOUT_S = 120.0
_NS = 1_000_000_000

Say = Callable[[dict[str, Any]], None]


async def play(own: Generator, start_ns: int, say: Say) -> dict[str, Any]:
    """Send the schedule of this process from `start_ns` (monotonic clock) on.

    Returns after its end: CPU seconds and wall seconds of the measured part, and whether sending was
    stopped early because `WAITING_MAX` sends had no answer.
    """
    options = own.options
    first_ns = start_ns + int(options.warm_up_s * _NS)
    end_ns = first_ns + int(options.duration_s * _NS)
    own.measured = (first_ns, end_ns)
    reporter = asyncio.create_task(_report(own, say))
    meter = asyncio.create_task(_meter(first_ns, end_ns))
    try:
        full = await _send_all(own, _due(own, end_ns - start_ns), start_ns)
        return {"cpu_s": await meter, "stopped_early": full}
    finally:
        reporter.cancel()
        meter.cancel()


async def _send_all(own: Generator, due: Iterator[tuple[int, Draw]], start_ns: int) -> bool:
    """Whether sending was stopped early."""
    clock, late = own.clock_ns, own.late
    following = next(due, None)
    while following is not None:
        now_ns = clock()
        touched: set[Device] = set()
        left = TURN_MESSAGES_MAX
        while following is not None and left and start_ns + following[0] <= now_ns:
            intended_ns = start_ns + following[0]
            touched.add(own.send(following[1], intended_ns))
            if intended_ns >= own.measured[0]:
                late.add((now_ns - intended_ns) // 1_000)
            following = next(due, None)
            left -= 1
        for device in touched:
            device.flush()
        if own.waiting > WAITING_MAX:
            return True
        if not left:
            await asyncio.sleep(0)
        elif following is not None:
            wait_s = (start_ns + following[0] - clock()) / _NS
            await asyncio.sleep(max(SLEEP_S, wait_s))
    await _sleep_until(own.measured[1])
    return False


def _due(own: Generator, length_ns: int) -> Iterator[tuple[int, Draw]]:
    """(ns from the start, message) in order of time, below `length_ns`."""
    plan, options = own.plan, own.options
    if plan.timed is not None:
        warm_ns = int(options.warm_up_s * _NS)
        for row in plan.timed:
            speaker = row.user % plan.connections
            if speaker % plan.processes == own.process and warm_ns + row.at_ns < length_ns:
                yield warm_ns + row.at_ns, Draw(speaker, 0, row.body_bytes)
        return
    traffic = Traffic(plan, own.process, own.rng("traffic"))
    if traffic.is_empty:
        return
    arrivals = ARRIVALS[options.arrivals]
    for at_ns in arrivals(options.rate / plan.processes, length_ns, own.rng("arrivals")):
        yield at_ns, traffic.draw()


async def _meter(first_ns: int, end_ns: int) -> float:
    """CPU seconds of this process in the measured part."""
    await _sleep_until(first_ns)
    before_s = time.process_time()
    await _sleep_until(end_ns)
    return time.process_time() - before_s


async def _sleep_until(at_ns: int) -> None:
    await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / _NS))


async def _report(own: Generator, say: Say) -> None:
    """Say how it goes, once a second; latencies are those of the messages of the second before last."""
    first_ns = own.measured[0]
    now_s = (own.clock_ns() - first_ns) // _NS
    while True:
        now_s += 1
        await _sleep_until(first_ns + now_s * _NS)
        second = now_s - 2
        say(
            {
                "second": now_s,
                "sent": own.ledger.sent,
                "acked": own.ledger.acked,
                "refused": len(own.ledger.refused),
                "delivered": own.ledger.delivered,
                "waiting": own.waiting,
                "ack": own.ack_by_second.get(second),
                "e2e": own.e2e_by_second.get(second),
            }
        )


async def open_chats(own: Generator, mine: Sequence[int], size: int) -> int:
    """Send one message in every direct chat whose first online member is in `mine`; how many."""
    plan, opened = own.plan, 0
    deadline = own.clock_ns() + int(OPEN_TIMEOUT_S * _NS)
    for number, conversation in enumerate(plan.conversations):
        if not conversation.direct or conversation.members[0] not in mine:
            continue
        device = own.open_chat(number, conversation.members[0], conversation.members[1], size)
        device.flush()
        opened += 1
        if own.waiting >= OPEN_WINDOW:
            await _answered(own, OPEN_WINDOW - 1, deadline)
    await _answered(own, 0, deadline)
    return opened


async def _answered(own: Generator, waiting_max: int, deadline_ns: int) -> None:
    """Until at most `waiting_max` sends have no answer."""
    while own.waiting > waiting_max:
        if own.clock_ns() > deadline_ns:
            raise TimeoutError(f"direct chats do not open: {own.waiting} sends have no answer")
        await asyncio.sleep(SLEEP_S)
