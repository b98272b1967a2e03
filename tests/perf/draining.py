"""How fast a backlog goes away, and what each process spends on it.

While stages drain, `watch` samples how many messages each has done and the processor time of everything.
Figures are taken between 10 % and 90 % of a stage's work, interpolated between samples: start-up, warming
up and the last stragglers are left out. Done by the fan-out stage is what lies in the dispatch topic, done
by a mailbox stage what its caller says (W in the store; push records).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.perf.processes import MeasurementError, Servers, cpu_s, rss_mb

SAMPLE_S = 0.1
STALLED_S = 45.0
FROM, TO = 0.1, 0.9
Progress = Callable[[], Awaitable[int]]


class Sample(NamedTuple):
    """What was true at a moment: work done per stage, CPU seconds per process."""

    at_s: float
    done: dict[str, int]
    cpu: dict[str, float]


@dataclass(slots=True)
class Drain:
    """A drain that ended. `totals`: work of each stage; `started_s`: when its workers were started."""

    totals: dict[str, int]
    started_s: float
    samples: list[Sample] = field(default_factory=list)
    rss: dict[str, float] = field(default_factory=dict)

    def moment(self, stage: str, share: float) -> Sample:
        """The state when a stage had done `share` of its work, interpolated."""
        goal = share * self.totals[stage]
        after = next(at for at, sample in enumerate(self.samples) if sample.done[stage] >= goal)
        if after == 0:
            return self.samples[0]
        low, high = self.samples[after - 1], self.samples[after]
        part = (goal - low.done[stage]) / (high.done[stage] - low.done[stage])
        cpu = {name: low.cpu[name] + part * (high.cpu[name] - low.cpu[name]) for name in high.cpu}
        return Sample(low.at_s + part * (high.at_s - low.at_s), high.done, cpu)

    def per_s(self, stage: str) -> float:
        """Work per second of a stage in its window."""
        took = self.moment(stage, TO).at_s - self.moment(stage, FROM).at_s
        return (TO - FROM) * self.totals[stage] / took

    def cpu_us(self, stage: str, processes: Sequence[str]) -> float:
        """CPU µs of `processes` per unit of the stage's work in its window."""
        low, high = self.moment(stage, FROM), self.moment(stage, TO)
        spent = sum(high.cpu[name] - low.cpu[name] for name in processes)
        return spent / ((TO - FROM) * self.totals[stage]) * 1e6

    def began_after_s(self, stage: str) -> float:
        """From the start of the processes to the first work done."""
        return next(one.at_s for one in self.samples if one.done[stage]) - self.started_s

    @property
    def over_after_s(self) -> float:
        """From the start of the processes until nothing was left."""
        return self.samples[-1].at_s - self.started_s


async def watch(
    servers: Servers, progress: Mapping[str, Progress], totals: Mapping[str, int], started_s: float
) -> Drain:
    """Sample until every stage has done all; MeasurementError when one dies, stalls or does too much."""
    drain, moved_s = Drain(dict(totals), started_s), time.monotonic()
    while True:
        done = {stage: await ask() for stage, ask in progress.items()}
        now_s = time.monotonic()
        drain.samples.append(Sample(now_s, done, {name: cpu_s(pid) for name, pid in servers.pids.items()}))
        if len(drain.samples) > 1 and done != drain.samples[-2].done:
            moved_s = now_s
        if any(done[stage] > totals[stage] for stage in done):
            raise MeasurementError(f"more was done than there is: {done} of {dict(totals)}")
        if done == totals:
            drain.rss = {name: rss_mb(pid) for name, pid in servers.pids.items()}
            return drain
        servers.check_workers()
        if now_s - moved_s > STALLED_S:
            said = servers.log_ends()
            raise MeasurementError(f"nothing moved for {STALLED_S:.0f} s: {done} of {dict(totals)}\n{said}")
        await asyncio.sleep(SAMPLE_S)


class LogEnds:
    """How many records topics hold, all partitions together, in one request."""

    def __init__(self, brokers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})

    async def count(self, topic: str, partitions: int) -> int:
        """Records ever appended to a topic."""
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        answers = await asyncio.to_thread(self._ask, wanted)
        return sum(answers)

    def _ask(self, wanted: dict[TopicPartition, OffsetSpec]) -> list[int]:
        return [future.result().offset for future in self._admin.list_offsets(wanted).values()]
