"""What every role process does: logs, event loop, signals, metrics port, exit codes.

Exit codes: 0 clean stop, 1 configuration or start-up error (one line on stderr), 70 stopped on doubt
(an outcome is unknown or an invariant broke: the supervisor starts the role again).
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from qim_streams.errors import ConfigError, QimError
from qim_streams.exposition import serve_metrics
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import EXIT_CONFIG, die
from qim_streams.streaming.quiet import quiet_drivers

NICENESS = 10
AUTOGROUP = Path("/proc/self/autogroup")
GC_YOUNG_OBJECTS, GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS = 50_000, 10, 20


def configure_logging(settings: Settings, role: str) -> None:
    """One line per event on stderr: time, level, role, logger, text."""
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s {role} %(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    quiet_drivers()


def now_ms() -> int:
    """Wall clock, milliseconds since the epoch. Services take it as an argument; roles pass this one."""
    return time.time_ns() // 1_000_000


def settle_garbage_collection() -> None:
    """Leave what start-up made out of collections, and collect young objects less often.

    Batches make many short-lived tuples that no cycle holds; looking at them took a sixth of the CPU
    of a stream stage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_MIDDLE_ROUNDS, GC_OLD_ROUNDS)


def run_in_batches() -> None:
    """Tell the kernel that this process works in batches: it is woken a little later and interrupted less.

    A stage that is interrupted in the middle of a batch comes back to cold caches; measured at 5,000 msg/s on
    two cores: half the involuntary switches, 3 % less CPU. Without effect where the kernel has no such thing.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_way() -> None:
    """Put this process behind the others: where cores are short, the stages that users wait for come first.

    Every role leads a session of its own, and a kernel that groups tasks by session (autogroup) shares the
    cores out between sessions: there the niceness of a process says nothing to other sessions, that of its
    group does. Measured at 5,000 msg/s on two cores, archiver and qsession: 52 µs per message became 38.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # no such kernel, or one that does not group
        AUTOGROUP.write_text(str(NICENESS))


def settle_stage(*, gives_way: bool = False) -> None:
    """What a stage does before it reads: its own way with garbage and with the scheduler.

    `gives_way`: nobody waits for it. One call, because a stage that forgot one of these was slow and nothing
    told: the archiver spent about a fifth of its CPU on collections that found nothing.
    """
    if gives_way:
        give_way()
    settle_garbage_collection()
    run_in_batches()


def run_role(
    role: str, settings: Settings, main: Callable[[Settings, asyncio.Event], Awaitable[None]]
) -> int:
    """Run `main(settings, stop)` until it returns or SIGINT/SIGTERM set `stop`; returns the exit code."""
    configure_logging(settings, role)

    async def body() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        serve_metrics(settings.metrics_host, settings.metrics_port)
        settle_garbage_collection()
        await main(settings, stop)

    try:
        uvloop.run(body())
    except ConfigError as error:
        print(f"qim {role}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except QimError as error:
        die(f"{type(error).__name__}: {error}", error)
    return 0
