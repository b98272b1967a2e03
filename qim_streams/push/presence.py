"""OnlineDevices: who can be pushed to, per shard, from the presence log; no remote call to ask.

A presence record is true as long as the gateway that wrote it holds its ConnectionShard lease: the
high half of a connection_id is that lease's epoch. When the lease passes to a newer epoch, or ends, all
devices of the older one vanish at once, without a record for each. A lease that comes back under the
same epoch brings them back.

Pure state, no I/O: `apply` takes records, `EpochTable.update` what the lease store says.

Spec: §6.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.errors import RecordError
from qim_streams.ids import is_text_id
from qim_streams.mailbox.members import Members
from qim_streams.ownership.ports import Holder
from qim_streams.placement import ORDINAL_MAX
from qim_streams.push import metrics
from qim_streams.records import Presence, decode_presence

DEVICES_MAX = 500_000  # per worker; more are not pushed to, they pull

_Key = tuple[str, str, str]


class Device(NamedTuple):
    """A connected device."""

    tenant_id: str
    user_id: str
    ordinal: int
    device_id: str
    connection_shard: int
    connection_id: int
    session_epoch: int

    @property
    def lease_epoch(self) -> int:
        """Epoch of the ConnectionShard lease under which the connection was made."""
        return self.connection_id >> 32


class EpochTable:
    """The newest known lease epoch of each ConnectionShard, and whether the lease is held."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._gone: set[int] = set()

    def known(self) -> dict[int, int]:
        """ConnectionShards that any presence record named, with their newest epoch, as of now."""
        return dict(self._epochs)

    def observe(self, device: Device) -> bool:
        """Take a presence record as a sign of life of its lease; True if it is the newest one."""
        newest = self._epochs.get(device.connection_shard, -1)
        if device.lease_epoch > newest:
            self._epochs[device.connection_shard] = device.lease_epoch
            self._gone.discard(device.connection_shard)
        return device.lease_epoch >= newest

    def is_live(self, device: Device) -> bool:
        """Whether the connection's gateway still holds the lease that it had."""
        shard = device.connection_shard
        return self._epochs.get(shard) == device.lease_epoch and shard not in self._gone

    def live(self, devices: Iterable[Device]) -> list[Device]:
        """Those of `devices` that are live."""
        epochs, gone = self._epochs, self._gone
        return [
            one
            for one in devices
            if epochs.get(shard := one.connection_shard) == one.connection_id >> 32 and shard not in gone
        ]

    def update(self, asked: Mapping[int, int], holders: Sequence[Holder | None]) -> set[int]:
        """Take over who holds the leases of `asked` (`known` from before the question).

        Returns ConnectionShards that came back to life under the epoch they had. An answer that is
        older than a presence record seen meanwhile changes nothing.
        """
        revived = set()
        for (shard, epoch), holder in zip(asked.items(), holders, strict=True):
            newest = self._epochs[shard]
            if holder is None:
                if newest == epoch:
                    self._gone.add(shard)
            elif holder.epoch >= newest:
                if holder.epoch == newest and shard in self._gone:
                    revived.add(shard)
                self._epochs[shard] = holder.epoch
                self._gone.discard(shard)
        return revived

    def is_outdated(self, device: Device) -> bool:
        """Whether the connection can never be live again."""
        return device.lease_epoch < self._epochs.get(device.connection_shard, -1)


class _Tenant:
    """The online users of a tenant in a shard."""

    __slots__ = ("devices", "ordinals")

    def __init__(self) -> None:
        self.ordinals = BitMap()
        self.devices: dict[int, dict[str, Device]] = {}


class OnlineDevices:
    """The devices of one shard. `budget` is shared by the shards of a worker."""

    def __init__(self, epochs: EpochTable, budget: "DeviceBudget") -> None:
        self._epochs, self._budget = epochs, budget
        self._tenants: dict[str, _Tenant] = {}
        self._sessions: dict[_Key, Device] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def apply(self, key: bytes | None, value: bytes | None) -> Device | None:
        """Take one presence record; the device that it announces if that is live, else None.

        A record that changes nothing announces, too: a gateway repeats one that was not answered.
        """
        outcome, device = self._apply(key, value)
        metrics.PRESENCE.labels(outcome).inc()
        return device

    def _apply(self, key: bytes | None, value: bytes | None) -> tuple[str, Device | None]:
        if key is None:
            return "malformed", None
        if value is None:
            return self._gone(key)
        try:
            device = _device(key, decode_presence(value))
        except RecordError:
            return "malformed", None
        where = (device.tenant_id, device.user_id, device.device_id)
        before = self._sessions.get(where)
        newest = self._epochs.observe(device)
        if not newest or (before is not None and before.session_epoch > device.session_epoch):
            return "stale", None
        if before == device:
            return "unchanged", device if self._epochs.is_live(device) else None
        if before is None and not self._budget.take():
            return "full", None
        if before is not None:
            self._remove(where, before)
        self._add(where, device)
        return "online", device if self._epochs.is_live(device) else None

    def _gone(self, key: bytes) -> tuple[str, None]:
        try:
            tenant, user, name = key.decode().split("\0")
        except ValueError:
            return "malformed", None
        before = self._sessions.get((tenant, user, name))
        if before is not None:
            self._remove((tenant, user, name), before)
            self._budget.give(1)
        return "gone", None

    def among(self, tenant_id: str, members: Members) -> list[Device]:
        """The live devices of `members`."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return []
        devices = tenant.devices
        ordinals: Iterable[int] = members & tenant.ordinals if isinstance(members, BitMap) else members
        found = [one for ordinal in ordinals if (of_user := devices.get(ordinal)) for one in of_user.values()]
        return self._epochs.live(found) if found else found

    def live(self, connection_shards: set[int] | None = None) -> list[Device]:
        """All live devices, or those on some ConnectionShards."""
        devices = self._sessions.values()
        if connection_shards is None:
            return self._epochs.live(devices)
        return self._epochs.live([one for one in devices if one.connection_shard in connection_shards])

    def of_user(self, tenant_id: str, ordinal: int) -> list[Device]:
        """The devices of a user, live or not."""
        tenant = self._tenants.get(tenant_id)
        return list(tenant.devices.get(ordinal, {}).values()) if tenant is not None else []

    def stretch(self, skip: int, limit: int) -> tuple[list[Device], bool]:
        """Up to `limit` devices behind the first `skip`, as they came; whether there are more."""
        found = list(islice(self._sessions.values(), skip, skip + limit + 1))
        return found[:limit], len(found) > limit

    def live_among(self, devices: Iterable[Device]) -> list[Device]:
        """Those of `devices` whose gateway still holds its lease."""
        return self._epochs.live(devices)

    def purge(self) -> int:
        """Drop devices whose gateway's lease has passed on; how many."""
        outdated = [(key, one) for key, one in self._sessions.items() if self._epochs.is_outdated(one)]
        for key, one in outdated:
            self._remove(key, one)
        self._budget.give(len(outdated))
        return len(outdated)

    def close(self) -> None:
        """Forget everything."""
        self._budget.give(len(self._sessions))
        self._sessions.clear()
        self._tenants.clear()

    def _add(self, key: _Key, device: Device) -> None:
        self._sessions[key] = device
        tenant = self._tenants.setdefault(device.tenant_id, _Tenant())
        tenant.ordinals.add(device.ordinal)
        tenant.devices.setdefault(device.ordinal, {})[device.device_id] = device

    def _remove(self, key: _Key, device: Device) -> None:
        del self._sessions[key]
        tenant = self._tenants[device.tenant_id]
        of_user = tenant.devices[device.ordinal]
        del of_user[device.device_id]
        if not of_user:
            del tenant.devices[device.ordinal]
            tenant.ordinals.discard(device.ordinal)
            if not tenant.devices:
                del self._tenants[device.tenant_id]


class DeviceBudget:
    """How many devices a worker may hold in memory."""

    def __init__(self, devices_max: int = DEVICES_MAX) -> None:
        self._left = devices_max

    def take(self) -> bool:
        """Room for one more device; False when there is none."""
        if self._left <= 0:
            return False
        self._left -= 1
        metrics.ONLINE.inc()
        return True

    def give(self, count: int) -> None:
        """Give room back."""
        self._left += count
        metrics.ONLINE.dec(count)


def _device(key: bytes, presence: Presence) -> Device:
    """The device of a presence record; RecordError when the key names another or a field is out of range."""
    names = (presence.tenant_id, presence.user_id, presence.device_id)
    if key != "\0".join(names).encode() or not all(is_text_id(name) for name in names):
        raise RecordError("Presence: key and value name different devices")
    if not (0 <= presence.ordinal <= ORDINAL_MAX and presence.connection_shard >= 0):
        raise RecordError("Presence: a number is out of its range")
    return Device(
        presence.tenant_id,
        presence.user_id,
        presence.ordinal,
        presence.device_id,
        presence.connection_shard,
        presence.connection_id,
        presence.session_epoch,
    )
