"""Presence records, devices and dispatches for the push tests."""

from qim_streams.ownership.ports import Holder
from qim_streams.push.presence import DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import Presence, record_key

ORDINALS = {"ann": 1, "ben": 65, "eve": 2}


def connection(number: int, epoch: int = 1) -> int:
    """A connection_id made under a lease epoch."""
    return epoch << 32 | number


def presence(
    user: str,
    device: str,
    number: int,
    *,
    shard: int = 0,
    epoch: int = 1,
    session: int = 1,
    tenant: str = "acme",
) -> tuple[bytes, bytes]:
    """Key and value of a presence record."""
    value = Presence(tenant, user, ORDINALS[user], device, shard, connection(number, epoch), session, 5)
    return record_key(tenant, user, device), value.encode()


def holder(shard: int, epoch: int) -> Holder:
    """A held ConnectionShard lease."""
    return Holder(f"cs:{shard}", "gw", 1, "gw", epoch, 1_000)


def cache(devices_max: int = 1_000) -> tuple[OnlineDevices, EpochTable]:
    """An empty cache of one shard."""
    epochs = EpochTable()
    return OnlineDevices(epochs, DeviceBudget(devices_max)), epochs
