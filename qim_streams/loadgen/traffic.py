"""Who sends next: draws a lane of the plan and, on it, the next member of this process. Pure."""

from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, cycle
from random import Random
from typing import NamedTuple

from qim_streams.loadgen.plan import Plan


class Draw(NamedTuple):
    """A message to send."""

    user: int
    conversation: int
    size: int


class _Lanes:
    """The conversations of one share in which users of this process can speak, each in turn."""

    def __init__(self, plan: Plan, process: int, conversations: range | tuple[int, ...]) -> None:
        self.turns: list[tuple[int, Iterator[int]]] = []
        for number in conversations:
            speakers = [user for user in plan.online_of(number) if user % plan.processes == process]
            if speakers:
                self.turns.append((number, cycle(speakers)))


class Traffic:
    """An endless stream of draws for one process, seeded."""

    def __init__(self, plan: Plan, process: int, rng: Random) -> None:
        self._rng = rng
        lanes = [(share, _Lanes(plan, process, tuple(share.conversations))) for share in plan.shares]
        self._lanes = [(share.size, part.turns) for share, part in lanes if part.turns]
        weights = [share.weight for share, part in lanes if part.turns]
        self._ends = list(accumulate(weights))

    @property
    def is_empty(self) -> bool:
        """Whether nobody of this process can speak anywhere."""
        return not self._lanes

    def draw(self) -> Draw:
        """The next message."""
        rng = self._rng
        at = 0
        if len(self._ends) > 1:
            at = min(bisect(self._ends, rng.random() * self._ends[-1]), len(self._ends) - 1)
        size, turns = self._lanes[at]
        conversation, speakers = turns[int(rng.random() * len(turns))]
        return Draw(next(speakers), conversation, size(rng))
