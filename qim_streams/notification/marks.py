"""Marks of many users in one round trip, whole: what the store lacks is asked for the careful way.

Nearly everybody has a state of a conversation soon after its first message; where there is none, it may be in
the archive alone, and is put back before anybody is told what he has muted.

Spec: §9, §14.8.
"""

from collections.abc import Sequence

from qim_streams.sessions.ports import SessionUser, UserStateReader, UserStateStore
from qim_streams.sessions.restoring import RestoredStates


class WholeMarks:
    """`StateReader` on the stores of the session list."""

    def __init__(self, states: UserStateStore, archive: UserStateReader) -> None:
        self._states, self._restored = states, RestoredStates(states, archive)

    async def states(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """See `StateReader.states`."""
        found = await self._states.read_seqs(wanted)
        missing: dict[SessionUser, list[str]] = {}
        for (user, name), data in zip(wanted, found, strict=True):
            if data is None:
                missing.setdefault(user, []).append(name)
        again: dict[tuple[SessionUser, str], bytes | None] = {}
        for user, names in missing.items():
            asked = list(dict.fromkeys(names))
            again.update(
                zip([(user, name) for name in asked], await self._restored.load(user, asked), strict=True)
            )
        return [again[place] if data is None else data for place, data in zip(wanted, found, strict=True)]
