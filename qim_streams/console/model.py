"""What the console shows of the pipeline, as values. Times are milliseconds since the epoch.

Spec: §11, §13.
"""

from dataclasses import dataclass, field
from typing import Literal

Health = Literal["ok", "warn", "bad", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition of a stage. Offsets: `end` is the next one of its log, `done` the next one to be done.

    Rates are per second over the last looks, null before the second look. `lag_s`: since the log ended where
    the stage is now; null where nothing is known. `owner` null: nobody.
    """

    partition: int
    source: str
    end: int | None
    done: int | None
    in_per_s: float | None
    done_per_s: float | None
    lag_records: int | None
    lag_s: float | None
    owner: str | None
    epoch: int | None
    health: Health
    reason: str | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A process of a stage. `ready` null: it was not asked, or did not answer (then `reasons` say so)."""

    name: str
    address: str | None
    ready: bool | None
    reasons: list[str]
    partitions: int


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage: the worst of its partitions, the sums of their rates, the largest lag in seconds.

    `partitions` may be left out; how many there are and how many have an owner is told in any case.
    """

    name: str
    title: str
    health: Health
    reasons: list[str]
    in_per_s: float | None
    done_per_s: float | None
    lag_records: int | None
    lag_s: float | None
    workers: list[WorkerView]
    partitions_total: int
    partitions_owned: int
    partitions: list[PartitionView]


@dataclass(frozen=True, slots=True)
class TopologyView:
    """All stages in the order of a message's way. `problems`: what could not be asked, and why."""

    at_ms: int
    window_s: float
    stages: list[StageView]
    problems: list[str] = field(default_factory=list)
