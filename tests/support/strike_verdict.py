"""Beside and after a strike: what is injected and sampled, and the checks that no client's history can make.

Spec: §2, §4, §5, §7, §11, §14. Invariants I9 I10 I12 I14 I15 I16 I17 I18.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final, Self

from qim_streams.testing.oracle import stays
from tests.support import checkers
from tests.support.checkers import Coordinates
from tests.support.dumps import Begin, Dump, begin, dump, hot_heads
from tests.support.evidence import Evidence, acts_of
from tests.support.logs import OUTBOX, ends
from tests.support.stack import StackProcess
from tests.support.strike_beside import POISON_READERS, TWIN, TWIN_MARK, OldCursors, Twin, poison_logs
from tests.support.strike_watch import StrikeWatch
from tests.support.traffic import Traffic

SERVERS: Final = ("kafka", "redis")
# Of one of our processes, on a stack like the matrix's.
BOUNDS: Final = {"MB": 400.0, "open files": 400.0, "threads": 60.0}
CURSORS: Final = 4


class StackMemory:
    """What is known of a stack's logs from one strike to the next."""

    def __init__(self) -> None:
        self.fences: Mapping[int, int] | None = None
        self.messages: set[bytes] = set()  # of all strikes so far
        self.count = 0


class Beside:
    """Use as a context manager around the traffic of a strike, before a word of it is said; `start` when
    it talks, `problems` once it was judged."""

    def __init__(
        self, stack: StackProcess, traffic: Traffic, shards: int, memory: StackMemory, *, once: bool
    ) -> None:
        """`once`: nobody who sets poison aside is struck, so nothing of it may be set aside twice."""
        self._once = once
        self._stack, self._traffic, self._shards, self._memory = stack, traffic, shards, memory
        self._twin = Twin(stack, traffic.plan.run)
        self._cursors = OldCursors(stack)
        self._stop = AsyncExitStack()
        self._poison: dict[Coordinates, bytes] = {}
        self._since = Begin({}, {})
        self._watch: StrikeWatch | None = None
        self.figures: dict[str, object] = {}

    async def __aenter__(self) -> Self:
        brokers = self._stack.client["brokers"]
        self._since = await asyncio.to_thread(begin, brokers, self._memory.fences)
        partitions = len(await asyncio.to_thread(ends, brokers, OUTBOX))
        self._watch = self._stop.enter_context(StrikeWatch(self._stack, partitions, self._shards))
        return self

    async def start(self) -> None:
        """Begin what goes on beside the traffic, once that has made its groups."""
        run = self._traffic.plan.run
        await self._stop.enter_async_context(self._twin)
        await self._cursors.take(self._traffic.silent[:CURSORS])
        number = self._memory.count
        self._memory.count += 1
        self._poison = await asyncio.to_thread(poison_logs, self._stack, run, number)

    async def __aexit__(self, *_: object) -> None:
        await self._stop.aclose()

    async def problems(self, evidence: Evidence) -> list[str]:
        """Everything that is wrong. The traffic was judged, so the pipeline is drained."""
        await self._twin.stop()
        shown = await self._twin.read()
        answers = await self._cursors.ask(evidence.mailboxes)
        assert self._watch is not None
        watch = self._watch
        found = await asyncio.to_thread(dump, self._stack.client["brokers"], self._since)
        bad = self._of_logs(evidence, found)
        bad += checkers.answers_are_explicit(answers) + self._cursors.problems
        bad += self._of_tenants(evidence, shown)
        bad += checkers.written_under_the_newest(watch.shards)
        bad += checkers.commits_follow_effects(watch.commits)
        bad += checkers.fanout_follows_effects(watch.fanout, found.outbox, found.dispatches)
        ours = {name: peaks for name, peaks in watch.peaks.items() if name not in SERVERS}
        bad += checkers.within_bounds(ours, BOUNDS)
        heads = await asyncio.to_thread(hot_heads, self._stack.client["redis_url"], evidence.tenant)
        bad += checkers.trimmed_only_archived(heads)
        self._memory.fences = found.fences
        self._memory.messages |= {one.message_id for one in found.outbox if one.counts}
        self.figures |= {
            "samples": watch.taken,
            "samples not taken": watch.skipped,
            "dispatches": len(found.dispatches),
            "records of old owners": sum(not one.counts for one in found.outbox),
            "poison": len(self._poison),
            "dead letters": len(found.letters),
            "old cursors": ", ".join(sorted(one.answer for one in answers)),
            "words of the twin": len(self._twin.acked),
            "most MB": round(max((used.get("MB", 0.0) for used in ours.values()), default=0.0)),
            "most open files": max((used.get("open files", 0.0) for used in ours.values()), default=0.0),
            "most threads": max((used.get("threads", 0.0) for used in ours.values()), default=0.0),
        }
        return bad

    def _of_logs(self, evidence: Evidence, found: Dump) -> list[str]:
        wanted = self._wanted(evidence)
        others = {one.message_id for one in found.outbox if one.counts} - wanted.keys()
        strangers = others | self._memory.messages
        acked = {
            one.value["key"]: bytes.fromhex(one.result["message_id"])
            for one in evidence.operations
            if one.op in ("send", "repeat") and one.phase == "ok"
        }
        dispatched = {one.message_id for one in found.dispatches}
        return [
            *checkers.dispatches_are_determined(found.dispatches, wanted, strangers),
            *checkers.left_out_has_no_effect(found.outbox, dispatched, acked),
            *checkers.letters_are_the_poison(
                self._poison, POISON_READERS, self._letters(found), once=self._once
            ),
        ]

    def _letters(self, found: Dump) -> list[checkers.Letter]:
        """Those of this strike; a replay may set aside again what an earlier one injected."""
        return [one for one in found.letters if one.at in self._poison or b"poison k" not in one.value]

    def _wanted(self, evidence: Evidence) -> dict[bytes, frozenset[int]]:
        """message_id -> the shards of who was a member at its seq, by the oracle's own count."""
        members = stays(acts_of(evidence))
        wanted = {}
        for one in evidence.outbox:
            message = one.message
            seq, spans = message.conversation_seq, members[message.conversation_id]
            wanted[bytes(message.message_id)] = frozenset(
                checkers.shard_of(evidence.tenant, user, self._shards)
                for user, stayed in spans.items()
                if any(joined < seq <= left for joined, left in stayed)
            )
        return wanted

    def _of_tenants(self, evidence: Evidence, shown: list[tuple[str, str, bytes]]) -> list[str]:
        ours = [
            (evidence.tenant, user, event.message.body)
            for user, events in evidence.mailboxes.items()
            for event in events
        ]
        run = self._traffic.plan.run
        marks = {TWIN: TWIN_MARK, evidence.tenant: f"{run}.".encode()}
        return checkers.isolated([*ours, *shown], marks) + self._twin.problems(shown)
