"""A writer's rig whose stores are those of a `HotTier`, real or fake; its logs stay in memory."""

from collections.abc import Callable

from qim_streams.commit.ports import OutboxAppend
from qim_streams.testing.memory_outbox import MemoryMembershipLog
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.support.hot_tier import SHARDS, HotTier, partition_of


def rig_on(
    tier: HotTier,
    log: list[OutboxAppend],
    boot: int,
    change_log: MemoryMembershipLog | None = None,
    place: Callable[[str, str], int] = partition_of,
) -> WriterRig:
    """Boot number `boot` of a writer. `log`: the Outbox; `place`: the partition of (tenant, conversation)."""
    return WriterRig(
        MemoryHotTier(place),
        log,
        boot=boot,
        conversations=tier.conversations,
        membership=tier.membership,
        reader=tier.reader,
        directory=tier.directory,
        leases=tier.leases,
        change_log=change_log,
        mailbox_shards=SHARDS,
    )
