"""What this worker gave up because a lane stood still: kept over its restart, for a bounded time.

A shard that is given up must not come straight back to the process that could not go on with it. So the
worker notes it in its state directory before it ends. The next boot stays away from its group until the
group has given its shards to others, and then joins with the wish not to get this one (`streaming.assignor`).
Where nobody else serves, staying away helps nobody: it goes on at once, and says so loudly.

Invariants: a note is durable before the lease is given up; it ends by itself, `AVOID_TIMES` the time after
which a lane counts as standing still. A file that cannot be read is as good as none: it costs one more stall.

Spec: §13 (lane_stall_failover).
"""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from qim_streams.durable_file import write_durably
from qim_streams.ownership.ports import Holder

log = logging.getLogger(__name__)

FILE: Final = "given-up.json"
AVOID_TIMES: Final = 5
FILE_BYTES_MAX: Final = 65_536


class Note(NamedTuple):
    """A shard that was given up. Milliseconds since 1970."""

    at_ms: int
    until_ms: int


class GivenUp:
    """The notes of one worker. Blocking (a few milliseconds): call it from a thread."""

    def __init__(self, state_dir: Path, avoid_s: float, now_ms: Callable[[], int]) -> None:
        """`avoid_s`: for how long a shard is not to come back."""
        self._path, self._avoid_ms, self._now_ms = state_dir / FILE, int(avoid_s * 1000), now_ms

    def note(self, shard: int) -> None:
        """`shard` is given up now. OSError: it is not noted."""
        now_ms = self._now_ms()
        notes = self.read() | {shard: Note(now_ms, now_ms + self._avoid_ms)}
        rows = {str(number): list(one) for number, one in notes.items()}
        write_durably(self._path, json.dumps(rows).encode())

    def read(self) -> dict[int, Note]:
        """What was given up and is not to come back yet."""
        now_ms, found = self._now_ms(), dict[int, Note]()
        try:
            rows = json.loads(self._path.read_bytes()[:FILE_BYTES_MAX])
            for shard, (at_ms, until_ms) in rows.items():
                # A clock that went back must not make a note last for ever.
                if at_ms <= now_ms < until_ms <= at_ms + self._avoid_ms:
                    found[int(shard)] = Note(int(at_ms), int(until_ms))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read, nothing is avoided: %s", self._path, error)
            return {}
        return found


def stay_away_s(notes: Iterable[Note], now_ms: int, session_s: float) -> float:
    """How much longer the group still counts this worker's last life as alive: from its last note on."""
    last_ms = max((one.at_ms for one in notes), default=0)
    return max(0.0, session_s - (now_ms - last_ms) / 1000)


def somebody_else(holders: Iterable[Holder | None], node: str) -> bool:
    """Whether another worker holds any shard now."""
    return any(one is not None and one.node != node for one in holders)
