"""From a broken and healed stack to a verdict: wait until the pipeline is drained, read everything, judge.

Draining is a promise too (I7): every wait here has a deadline, and what is not done by then is a violation
that the checks name.

Spec: §2 to §7.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import redis

from qim_streams.archive.opening import open_archive_reader
from qim_streams.archive.ports import ArchiveReader
from qim_streams.cli.servers import server_settings
from qim_streams.errors import QimError
from qim_streams.testing.history import HistoryWriter, operations, read_history
from qim_streams.testing.oracle import expected_mailboxes
from qim_streams.wire.frames import Event
from tests.support.checkers import archive_is_outbox, undrained
from tests.support.evidence import Evidence, acts_of, problems
from tests.support.logs import DISPATCH, OUTBOX, HotTier, Logged, ends, read_outbox
from tests.support.session_lists import list_problems
from tests.support.stack import StackProcess
from tests.support.traffic import TROUBLE, Plan, Traffic
from tests.support.waiting import eventually
from tests.support.watermark_sampler import WatermarkSampler

DRAIN_S = 90.0
SHOWN_MAX = 20
READ_ENTRIES = 300  # per pull of the last reading


@dataclass(slots=True)
class Verdict:
    """`problems` must be empty; `figures` go into the report."""

    problems: list[str]
    figures: dict[str, object] = field(default_factory=dict)
    evidence: Evidence | None = None

    def keep(self, directory: Path, outbox: Sequence[Logged]) -> None:
        """Write down what a person needs to find out what went wrong: all problems and the Outbox."""
        (directory / "problems.txt").write_text("\n".join(self.problems) + "\n")
        with (directory / "outbox.tsv").open("w") as file:
            for one in outbox:
                what = one.message
                row = (one.partition, one.offset, what.conversation_id, what.conversation_seq)
                rest = (what.membership_version, what.client_message_id, what.message_id.hex(), one.relayed)
                file.write("\t".join(map(str, row + rest)) + "\n")

    def check(self) -> None:
        """Fail with the first problems, if there are any."""
        shown = "\n".join(self.problems[:SHOWN_MAX])
        assert not self.problems, f"{len(self.problems)} problems, figures {self.figures}:\n{shown}"


class Stopwatch:
    """How long the steps took, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, object] = {}
        self._at_s = time.monotonic()

    def lap(self, name: str) -> None:
        """A step is done."""
        now_s = time.monotonic()
        self.laps[name], self._at_s = round(now_s - self._at_s, 2), now_s


def start_traffic(stack: StackProcess, plan: Plan, directory: Path) -> Traffic:
    """The workload on a running stack; its history is kept in `directory`."""
    path = history_path(plan, directory)
    path.unlink(missing_ok=True)
    return Traffic(stack.address(), plan, HistoryWriter(path, time.monotonic_ns))


def history_path(plan: Plan, directory: Path) -> Path:
    """Where the history of a run is."""
    return directory / f"history-{plan.run}.jsonl"


async def verdict_on(
    traffic: Traffic, stack: StackProcess, sampler: WatermarkSampler, directory: Path
) -> Verdict:
    """Heal, drain, read everything to its end, and judge. The stack must be whole again."""
    clock = Stopwatch()
    await traffic.settle()
    clock.lap("settle, s")
    brokers, tenant, run = stack.client["brokers"], traffic.address.require_tenant(), traffic.plan.run
    with closing(HotTier(stack.client["redis_url"])) as tier:
        await eventually(lambda: _no_pending(tier), DRAIN_S, "every reserved message to be confirmed")
        outbox = await asyncio.to_thread(read_outbox, brokers, tenant, f"{run}.")
        clock.lap("read the Outbox, s")
        traffic.history.mark("measure")
        evidence = Evidence(
            tenant,
            traffic.plan.body_bytes_max,
            operations(read_history(history_path(traffic.plan, directory))),
            outbox,
            {},
            probes=traffic.probes,
            rebuilds_allowed=traffic.plan.hot_tier_forgets,
        )
        evidence.mailboxes = await _mailboxes(traffic, evidence)
        clock.lap("drain, s")
        late = await _undrained(tier, brokers)
    late += await list_problems(stack.client["redis_url"], tenant, evidence.mailboxes, traffic.listed)
    clock.lap("session lists, s")
    await traffic.checkpoint()
    for device in traffic.devices:
        await device.close()
    evidence.devices = traffic.devices
    evidence.seen_while_running = [
        *traffic.problems,
        *([] if traffic.plan.hot_tier_forgets else sampler.violations),
        *late,
        *await unarchived(open_archive_reader(server_settings(stack.state_dir)[0]), brokers, outbox),
    ]
    clock.lap("checkpoints and archive, s")
    verdict = Verdict(problems(evidence), figures(evidence, traffic, sampler) | clock.laps, evidence)
    if verdict.problems:
        verdict.keep(directory, outbox)
    return verdict


def _no_pending(tier: HotTier) -> bool:
    try:
        return tier.pending() == 0
    except redis.RedisError:
        return False


async def _mailboxes(traffic: Traffic, evidence: Evidence) -> dict[str, tuple[Event, ...]]:
    """Every mailbox by a new device, again until it holds as much as the log says or the time is over."""
    acts = acts_of(evidence)
    in_log = {one.message.client_message_id: one.message for one in evidence.outbox}
    known = [
        act._replace(outcome="ok", place=(act.place[0], in_log[act.key].conversation_seq))
        if act.key in in_log
        else act
        for act in acts
    ]
    wanted = {user: len(places) for user, places in expected_mailboxes(known).items()}
    limit = asyncio.Semaphore(4)

    async def read(user: str) -> tuple[Event, ...]:
        deadline_s = time.monotonic() + DRAIN_S
        while True:
            async with limit:
                try:
                    events = (await traffic.probe(user, READ_ENTRIES)).events
                except TROUBLE:
                    if time.monotonic() > deadline_s:
                        raise
                    continue
            if len(events) >= wanted.get(user, 0) or time.monotonic() > deadline_s:
                return events
            await asyncio.sleep(0.1)

    users = [*traffic.users, *traffic.silent]
    return dict(zip(users, await asyncio.gather(*map(read, users)), strict=True))


async def _undrained(tier: HotTier, brokers: str) -> list[str]:
    """I7: W of every shard reaches the end of the dispatch log."""
    wanted = await asyncio.to_thread(ends, brokers, DISPATCH)

    def behind() -> list[str]:
        return undrained(tier.watermarks(), wanted)

    try:
        await eventually(lambda: not behind(), DRAIN_S, "W at the end of the log")
    except AssertionError:
        return behind()
    return []


async def unarchived(reader: ArchiveReader, brokers: str, outbox: list[Logged]) -> list[str]:
    """I12: the archive watermark reaches the end of the Outbox, and every message of the run is archived.

    `reader` is closed.
    """
    wanted = {part: end - 1 for part, end in (await asyncio.to_thread(ends, brokers, OUTBOX)).items() if end}

    async def reached() -> bool:
        try:
            marks = [await reader.watermark(partition) for partition in wanted]
        except QimError:
            return False  # the archiver may be starting
        return all(mark >= last for mark, last in zip(marks, wanted.values(), strict=True))

    try:
        await eventually(reached, DRAIN_S, "the archive to reach the end of the Outbox")
        places = {
            (one.message.tenant_id, one.message.conversation_id, one.message.conversation_seq): one.raw
            for one in outbox
        }
        found = await reader.records(list(places))
    except AssertionError as error:
        return [f"I12: {error}"]
    finally:
        await reader.close()
    return archive_is_outbox(dict(zip(places, found, strict=True)), places)


def seconds_with_an_ack(acks_s: Sequence[float]) -> float:
    """Share of the whole seconds between first and last ack in which one came, in percent."""
    if not acks_s:
        return 0.0
    first = int(acks_s[0])
    seconds = {int(at) - first for at in acks_s}
    return round(100 * len(seconds) / (max(seconds) + 1), 1)


def figures(evidence: Evidence, traffic: Traffic, sampler: WatermarkSampler) -> dict[str, object]:
    """The counts of a run, for the report."""
    sends = [one for one in evidence.operations if one.op == "send"]
    outcomes = Counter(one.phase for one in sends)
    copies = Counter((one.message.conversation_id, one.message.conversation_seq) for one in evidence.outbox)
    waits = [(one.end_ns - one.start_ns) / 1e9 for one in sends if one.phase == "ok" and one.end_ns]
    acks_s = sorted(one.end_ns / 1e9 for one in sends if one.phase == "ok" and one.end_ns)
    silences = [after - before for before, after in pairwise(acks_s)]
    return {
        "seed": traffic.plan.seed,
        "sent": len(sends),
        "acked": outcomes["ok"],
        "refused": outcomes["fail"],
        "unknown": outcomes["info"],
        "repeats": sum(one.op == "repeat" for one in evidence.operations),
        "membership changes": traffic.counts["changes"],
        "entries": sum(len(events) for events in evidence.mailboxes.values()),
        "probes": traffic.counts["probes"],
        "Outbox copies": sum(copies.values()) - len(copies),
        "seen again on the wire": sum(device.wire_duplicates for device in evidence.devices),
        "visible duplicates": sum(device.visible_duplicates for device in evidence.devices),
        "gaps closed by pull": sum(device.gaps for device in evidence.devices),
        "rebuilds": sum(device.rebuilds for device in evidence.devices),
        "W samples": sampler.samples,
        "median wait for an ack, ms": round(1_000 * median(waits or [0.0]), 1),
        "longest wait for an ack, s": round(max(waits, default=0.0), 2),
        "longest time without any ack, s": round(max(silences, default=0.0), 2),
        "seconds with an ack, %": seconds_with_an_ack(acks_s),
    }
