"""What the console asks, and of whom.

Spec: §11, §13.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Place = tuple[str, int]  # topic and partition


class GroupView(NamedTuple):
    """A consumer group. `committed`: next offset per place; `owners`: which member has it."""

    state: str
    committed: Mapping[Place, int]
    owners: Mapping[Place, str]


class StageLog(Protocol):
    """Logs and consumer groups. StoreUnavailable when the broker does not answer."""

    async def ends(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """The next offset of each partition of each topic; a topic that does not exist has none."""

    async def groups(self, names: Mapping[str, Sequence[Place]]) -> dict[str, GroupView]:
        """State, committed offsets of these places, and owners of each group."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page of a process said. `problem`: why there is no content; then `status` is 0."""

    url: str
    status: int
    content: Any = None
    problem: str | None = None


class Pages(Protocol):
    """JSON pages of our own processes, by HTTP; bounded in time and size. Never raises."""

    async def get(self, url: str, fields: Mapping[str, str] | None = None) -> Answer:
        """``GET url?fields``."""


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """The web view of a stream worker: its role, what it serves, whether it is ready."""

    url: str
    role: str | None
    ready: bool | None
    reasons: list[str]
    partitions: Mapping[str, list[int]] = field(default_factory=dict)  # by topic
    problem: str | None = None
