"""Which sessions live on this gateway: by connection_id for pushes, by device for replacement.

A connection_id is the epoch of the ConnectionShard lease and a counter; when the lease changes, every
session gets a new one (`rebase`), because the mailbox stage takes connections of older epochs for dead.

Invariants: at most one session per device; a ConnectionShard never has a connection id twice; sessions
that ended are remembered for a while (bounded), so that a push to one of them can be answered with a
tombstone.

Spec: §6, §7.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from qim_streams.gateway.ports import DeviceKey

ENDED_MAX: Final = 10_000
NO_SHARD: Final = -1


class Registered(Protocol):
    """What the registry needs of a session."""

    connection_id: int
    session_epoch: int

    @property
    def device(self) -> DeviceKey:
        """The device of the session."""


Live = TypeVar("Live", bound=Registered)


class Registry(Generic[Live]):
    """The sessions of this gateway."""

    def __init__(self) -> None:
        self.connection_shard = NO_SHARD
        self._epoch = 0
        self._counter = 0
        self._by_id: dict[int, Live] = {}
        self._by_device: dict[DeviceKey, Live] = {}
        self._ended: OrderedDict[int, tuple[DeviceKey, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_device)

    @property
    def has_shard(self) -> bool:
        """Whether a ConnectionShard is leased."""
        return self.connection_shard != NO_SHARD

    def sessions(self) -> list[Live]:
        """All sessions, as of now."""
        return list(self._by_device.values())

    def get(self, connection_id: int) -> Live | None:
        """The session of a connection_id."""
        return self._by_id.get(connection_id)

    def of_device(self, device: DeviceKey) -> Live | None:
        """The session of a device."""
        return self._by_device.get(device)

    def add(self, session: Live) -> Live | None:
        """Register `session` under a new connection_id; returns the session that it replaces.

        When the session that lives here is newer, `session` itself is returned and not registered: two
        AUTH of one device may overtake each other.
        """
        before = self._by_device.get(session.device)
        if before is not None and before.session_epoch > session.session_epoch:
            return session
        if before is not None:
            self.remove(before)
        session.connection_id = self._next_id()
        self._by_id[session.connection_id] = session
        self._by_device[session.device] = session
        return before

    def remove(self, session: Live) -> bool:
        """Forget a session; False when it was not (or no longer) registered."""
        if self._by_id.get(session.connection_id) is not session:
            return False
        del self._by_id[session.connection_id]
        if self._by_device.get(session.device) is session:
            del self._by_device[session.device]
        self._ended[session.connection_id] = (session.device, session.session_epoch)
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        return True

    def take_ended(self, connection_ids: Iterable[int]) -> list[tuple[DeviceKey, int]]:
        """(device, session_epoch) of those connections that ended here; each is told once."""
        found = (self._ended.pop(one, None) for one in connection_ids)
        return [one for one in found if one is not None]

    def rebase(self, connection_shard: int, epoch: int) -> list[Live]:
        """A ConnectionShard was leased: give every session a new connection_id and return them."""
        self.connection_shard, self._epoch = connection_shard, epoch
        sessions = self.sessions()
        self._by_id.clear()
        self._ended.clear()
        for session in sessions:
            session.connection_id = self._next_id()
            self._by_id[session.connection_id] = session
        return sessions

    def unbase(self) -> None:
        """The lease is lost: nothing is announced until the next one."""
        self.connection_shard = NO_SHARD

    def _next_id(self) -> int:
        self._counter += 1
        return (self._epoch << 32) | self._counter
