"""The stages of the pipeline with live rates, lag, owners and health: from logs, groups, leases, processes.

A look asks the broker for the ends of the sources and the positions and owners of the groups, the lease store
for who owns what, and every process it learns of whether it serves. Looks are taken when somebody asks, at
most one a second however many ask; so rates exist from the second look on.

Invariants: a part that does not answer makes its stages `unknown` with the reason, never `ok`.

Spec: §11, §13.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from qim_streams.console import rules
from qim_streams.console.model import PartitionView, StageView, TopologyView, WorkerView
from qim_streams.console.ports import GroupView, Pages, Place, StageLog, WorkerPage
from qim_streams.errors import StoreError
from qim_streams.ownership.ports import Holder

LOOK_S: Final = 1.0
ASK_S: Final = 8.0  # for each of the parts of a look
T = TypeVar("T")
Ask = Callable[[list[str]], Awaitable[list[Holder | None]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. `sources`: topics; `group`: whose offsets are its position (None: none that can be seen);
    `lease`: prefix of the leases of its partitions. `idle_ok`: partitions without an owner are no fault.
    """

    name: str
    title: str
    role: str
    sources: tuple[str, ...]
    group: str | None = None
    lease: str | None = None
    idle_ok: bool = False


class _Look(NamedTuple):
    ends: Mapping[str, list[int]]
    groups: Mapping[str, GroupView]
    holders: Mapping[str, Holder | None]
    workers: Sequence[WorkerPage]
    ready: Mapping[str, tuple[bool | None, list[str]]]  # by address of a lease's holder
    problems: list[str]


class Topology:
    """Takes looks and remembers the last ones. `workers` asks the workers' web views.

    `behind_max_s`: a stage further behind is a fault, 0: however far. `secure`: links have TLS.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        log: StageLog,
        holders: Ask,
        pages: Pages,
        workers: Callable[[], Awaitable[list[WorkerPage]]],
        *,
        behind_max_s: float,
        secure: bool = False,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._stages, self._log, self._holders = list(stages), log, holders
        self._pages, self._workers = pages, workers
        self._behind_max_s, self._secure = behind_max_s, secure
        self._clock, self._now_ms = clock, now_ms
        self._tracks: dict[tuple[str, Place], rules.Track] = {}
        self._turn = asyncio.Lock()
        self._last: tuple[float, TopologyView] | None = None

    async def read(self) -> TopologyView:
        """The stages as of now, or of less than a second ago."""
        async with self._turn:
            now_s = self._clock()
            if self._last is None or now_s - self._last[0] >= LOOK_S:
                self._last = (now_s, await self._look())
            return self._last[1]

    async def _look(self) -> TopologyView:
        problems: list[str] = []
        topics = sorted({topic for stage in self._stages for topic in stage.sources})
        ends = await _part("broker", self._log.ends(topics), problems, {})
        at_s = self._clock()
        places = {
            stage.group: [(topic, p) for topic in stage.sources for p in range(len(ends.get(topic, ())))]
            for stage in self._stages
            if stage.group is not None
        }
        groups, held, workers = await asyncio.gather(
            _part("consumer groups", self._log.groups(places), problems, {}),
            _part("leases", self._held(ends), problems, {}),
            self._workers(),
        )
        ready = await self._ready(held)
        look = _Look(ends, groups, held, workers, ready, problems)
        stages = [self._stage(stage, look, at_s) for stage in self._stages]
        return TopologyView(self._now_ms(), rules.WINDOW_S, stages, sorted(set(problems)))

    async def _held(self, ends: Mapping[str, list[int]]) -> dict[str, Holder | None]:
        names = [
            f"{stage.lease}:{p}"
            for stage in self._stages
            if stage.lease is not None
            for p in range(len(ends.get(stage.sources[0], ())))
        ]
        return dict(zip(names, await self._holders(names), strict=True))

    async def _ready(self, held: Mapping[str, Holder | None]) -> dict[str, tuple[bool | None, list[str]]]:
        """Whether the processes behind the leases serve: those that have an address of their own."""
        addresses = sorted({one.address for one in held.values() if one is not None and ":" in one.address})
        answers = await asyncio.gather(
            *(self._pages.get(readiness_url(one, secure=self._secure)) for one in addresses)
        )
        found: dict[str, tuple[bool | None, list[str]]] = {}
        for address, answer in zip(addresses, answers, strict=True):
            if answer.problem is not None or not isinstance(answer.content, dict):
                found[address] = (None, [f"does not answer: {answer.problem or 'no JSON object'}"])
            else:
                found[address] = (bool(answer.content.get("ready")), texts(answer.content.get("reasons")))
        return found

    # -- a stage

    def _stage(self, stage: Stage, look: _Look, at_s: float) -> StageView:
        partitions = [
            self._partition(stage, topic, p, end, look, at_s)
            for topic in stage.sources
            for p, end in enumerate(look.ends.get(topic, ()))
        ]
        workers = _workers_of(stage, look, partitions)
        healths = [one.health for one in partitions]
        owned = any(one.owner for one in partitions)
        reasons = [f"{one.source}[{one.partition}]: {one.reason}" for one in partitions if one.reason]
        for worker in workers:
            if worker.ready is False:
                healths.append("bad")
                reasons += [f"{worker.name}: {why}" for why in worker.reasons or ["is not ready"]]
        if not partitions:
            healths, reasons = ["unknown"], ["the broker does not say which partitions there are"]
        elif not owned and not workers and not any(one.health == "unknown" for one in partitions):
            reasons = [f"no process of it runs: start `{stage.role}`"]
            healths.append("bad")
        return StageView(
            stage.name,
            stage.title,
            rules.worst(healths),
            reasons,
            rules.added(one.in_per_s for one in partitions),
            rules.added(one.done_per_s for one in partitions),
            _whole(rules.added(one.lag_records for one in partitions)),
            rules.largest(one.lag_s for one in partitions),
            workers,
            len(partitions),
            sum(one.owner is not None for one in partitions),
            partitions,
        )

    def _partition(
        self, stage: Stage, topic: str, partition: int, end: int, look: _Look, at_s: float
    ) -> PartitionView:
        group = look.groups.get(stage.group) if stage.group is not None else None
        holder = look.holders.get(f"{stage.lease}:{partition}") if stage.lease is not None else None
        done = None if group is None else group.committed.get((topic, partition), None if end else 0)
        track = self._tracks.setdefault((stage.name, (topic, partition)), rules.Track())
        track.note(at_s, end, done)
        pace = track.pace()
        owner = holder.node if holder is not None else None
        if group is not None:
            owner = group.owners.get((topic, partition))
        view = PartitionView(
            partition, topic, end, done, *pace, owner, holder.epoch if holder else None, "ok", None
        )
        if stage.group is not None and group is None:
            return replace(view, health="unknown", reason="the broker does not tell of its consumer group")
        if stage.group is not None:
            health, reason = rules.partition_health(owner, pace.lag_records, pace.lag_s, self._behind_max_s)
            return replace(view, health=health, reason=reason)
        if stage.lease is not None and f"{stage.lease}:{partition}" not in look.holders:
            return replace(view, health="unknown", reason="the lease store does not answer")
        if owner is None:
            return replace(
                view,
                health="off" if stage.idle_ok else "bad",
                reason=None if stage.idle_ok else "nobody holds its lease",
            )
        return view


async def _part(name: str, asked: Awaitable[T], problems: list[str], otherwise: T) -> T:
    """What `asked` gives; a store that does not answer is noted as a problem."""
    try:
        async with asyncio.timeout(ASK_S):
            return await asked
    except TimeoutError:
        problems.append(f"{name}: no answer within {ASK_S:.0f} s; look at its log and at the network")
    except StoreError as error:
        problems.append(f"{name}: {error}")
    return otherwise


def _workers_of(stage: Stage, look: _Look, partitions: Sequence[PartitionView]) -> list[WorkerView]:
    """The processes of a stage: those with a web view, those that hold its leases, those in its group."""
    counts: dict[str, int] = {}
    for one in partitions:
        if one.owner is not None:
            counts[one.owner] = counts.get(one.owner, 0) + 1
    found: list[WorkerView] = []
    if stage.group is None:
        addresses = {
            holder.node: holder.address
            for name, holder in look.holders.items()
            if holder is not None and name.partition(":")[0] == stage.lease
        }
        for name, count in sorted(counts.items()):
            address = addresses.get(name)
            ready, why = look.ready.get(address or "", (None, []))
            found.append(WorkerView(name, address, ready, why, count))
        return found
    seen = [page for page in look.workers if page.role == stage.role]
    for page in seen:
        count = sum(len(page.partitions.get(topic, ())) for topic in stage.sources)
        found.append(WorkerView(_host(page.url), page.url, page.ready, page.reasons, count))
    if not seen:  # their web views are closed: the group knows their names
        found = [WorkerView(name, None, None, [], count) for name, count in sorted(counts.items())]
    return found


def readiness_url(address: str, *, secure: bool) -> str:
    """Where a role says whether it serves; `address`: of its lease, URL of a gateway or host:port.

    `secure`: links between roles have TLS.
    """
    if "//" in address:
        parts = urlsplit(address)
        return f"{'https' if parts.scheme in ('wss', 'https') else 'http'}://{parts.netloc}/readyz"
    return f"{'https' if secure else 'http'}://{address}/readyz"


def texts(value: Any) -> list[str]:
    """The strings of a list that another process sent, bounded."""
    return [one[:300] for one in value if isinstance(one, str)][:20] if isinstance(value, list) else []


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
