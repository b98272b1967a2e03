"""Which partitions a worker is not to be given for a while, as the group's leader decides it. Pure.

A worker that could not go on with a partition (a lane that stood still, Spec: §13) says so when it joins its
group again. The leader hands out partitions as always and then exchanges those: the one that is avoided
against one of a worker that has no more than its share. Who has fewest gets it.

Invariants: every partition still has exactly one owner; no worker has more than before but one whose number
was lower; with nobody else to go to a partition stays where it is, and the answer names it.
"""

from collections.abc import Mapping, MutableMapping, Set
from typing import Final

PREFIX: Final = "avoid:"  # keys of a member's notes beside those of its topics


def noted(avoided: Mapping[int, int]) -> dict[str, int]:
    """partition -> until (s since 1970), as a member tells it."""
    return {f"{PREFIX}{partition}": until_s for partition, until_s in avoided.items()}


def read_notes(notes: Mapping[str, int], now_s: float) -> set[int]:
    """The partitions that a member is not to be given now."""
    return {
        int(name.removeprefix(PREFIX))
        for name, until_s in notes.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit() and until_s > now_s
    }


def exchange(owned: MutableMapping[str, set[int]], avoided: Mapping[str, Set[int]]) -> list[tuple[str, int]]:
    """Move what is avoided, in `owned` (worker -> partitions); what nobody else could be given.

    The same for the same arguments, whatever the order of the mappings.
    """
    stuck = []
    for worker in sorted(owned):
        for partition in sorted(owned[worker] & set(avoided.get(worker, ()))):
            others = [one for one in owned if one != worker and partition not in avoided.get(one, ())]
            if not others:
                stuck.append((worker, partition))
                continue
            other = min(others, key=lambda one: (len(owned[one]), one))
            owned[worker].remove(partition)
            back = sorted(owned[other] - set(avoided.get(worker, ())))
            if back and len(owned[other]) > len(owned[worker]):
                owned[other].remove(back[0])
                owned[worker].add(back[0])
            owned[other].add(partition)
    return stuck
