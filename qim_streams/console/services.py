"""Everything that the console's routes ask, in one value.

Spec: §11.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from qim_streams.console.dead_letters import DeadLetters
from qim_streams.console.directory import Directory
from qim_streams.console.model import TopologyView
from qim_streams.console.shard_map import ShardMap
from qim_streams.console.worker_tables import WorkerTables


class TopologyReader(Protocol):
    """The stages as they stand. Never raises for a store that does not answer: the view says so."""

    async def read(self) -> TopologyView:
        """Rates, lag, owners and health of every stage."""


@dataclass(frozen=True, slots=True)
class ConsoleDeps:
    """What the routes need. `gateways`: URLs of those that serve; StoreUnavailable."""

    topology: TopologyReader
    gateways: Callable[[], Awaitable[list[str]]]
    tables: WorkerTables
    shards: ShardMap
    directory: Directory
    letters: DeadLetters
