"""EpochBoundary on a real Redis: written by the grant, read by the verdict. E8; Spec: §7, §11."""

import asyncio
import time

import pytest

from qim_streams import limits
from qim_streams.errors import FencedError, StoreError, SyncVerdict
from qim_streams.gateway.redis_devices import RedisShardEpochs
from qim_streams.mailbox import watermark
from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.placement import LANES
from qim_streams.redis_tier import RedisClient
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.redis_boundaries import RedisEpochBoundaries
from qim_streams.sync.service import SyncService

SHARD, TTL_MS = 3, 60_000


class Shard:
    """A shard whose owners come and go; each boot of the node takes over at once."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.leases, self.store = RedisLeaseStore(client, first_epoch=1), RedisMailboxStore(client)
        self.boundaries, self.epochs = RedisEpochBoundaries(client), RedisShardEpochs(client)
        self.boot, self.epoch, self.tail = 0, 0, -1

    async def take_over(self) -> int:
        """A new owner; its epoch."""
        self.boot += 1
        grant = await self.leases.acquire(f"s:{SHARD}", "node", self.boot, "host:1", TTL_MS)
        assert isinstance(grant, Grant)
        self.epoch = grant.epoch
        return grant.epoch

    async def write(self, seq: int) -> None:
        """An entry, and W at it."""
        group = EntryGroup("acme", seq, 0, b"v", [1])
        assert await self.store.write_and_advance(SHARD, self.epoch, [group], self.tail, seq) == seq
        self.tail = seq

    async def boundary(self, from_epoch: int, to_epoch: int, lane: int = 9) -> int | None:
        """What is left of positions of `from_epoch`."""
        return await self.boundaries.boundary(SHARD, lane, from_epoch, to_epoch)


@pytest.fixture
def shard(hot_client: RedisClient) -> Shard:
    return Shard(hot_client)


async def test_the_first_grant_covers_nothing(shard: Shard) -> None:
    before_ms = int(time.time() * 1_000) - 60_000
    assert await shard.take_over() == 1
    (first,) = await shard.boundaries.read(SHARD, 1, 1)
    assert first is not None
    assert first.lanes == (-1,) * LANES
    assert before_ms < first.granted_at_ms < before_ms + 120_000


async def test_each_takeover_notes_w_as_it_fences(shard: Shard) -> None:
    """What the former owner moved W to is the boundary; from then on it moves W no further."""
    await shard.take_over()
    await shard.write(4)
    await shard.take_over()
    with pytest.raises(FencedError):
        await shard.store.write_and_advance(SHARD, 1, [], 4, 9)
    await shard.write(7)
    await shard.take_over()
    assert [await shard.boundary(before, 3) for before in (0, 1, 2)] == [-1, 4, 7]
    assert await shard.boundary(1, 2) == 4
    assert await shard.epochs.current(SHARD) == 3


async def test_a_renewal_and_a_repeated_grant_change_nothing(shard: Shard) -> None:
    """The boundary belongs to the epoch, not to the call."""
    await shard.take_over()
    await shard.write(4)
    grant = await shard.leases.acquire(f"s:{SHARD}", "node", shard.boot, "host:1", TTL_MS)
    assert grant == Grant(f"s:{SHARD}", 1)
    assert await shard.leases.renew([grant], "node", shard.boot, TTL_MS) == [True]
    assert await shard.boundary(0, 1) == -1
    assert await shard.client.hlen(f"{{s:{SHARD}}}:epochs") == 1


async def test_lanes_that_stand_apart_are_kept_apart(shard: Shard) -> None:
    """The long form of W goes into the boundary as it is."""
    await shard.client.hset(f"{{s:{SHARD}}}:w", "w", watermark.pack(range(LANES)))
    await shard.take_over()
    assert [await shard.boundary(0, 1, lane) for lane in (0, 17, 63)] == [0, 17, 63]


async def test_an_epoch_without_a_boundary_is_unknown(shard: Shard) -> None:
    """A shard from before boundaries were kept, and one whose hash was lost: None, so CURSOR_EXPIRED."""
    await shard.client.set(f"{{s:{SHARD}}}:epoch", 5)
    await shard.take_over()
    await shard.write(3)
    await shard.take_over()
    assert await shard.boundary(5, 7) == -1
    assert await shard.boundary(6, 7) == 3
    assert await shard.boundary(4, 7) is None
    await shard.client.hdel(f"{{s:{SHARD}}}:epochs", "6")
    assert await shard.boundary(5, 7) is None


async def test_boundaries_are_bounded(shard: Shard) -> None:
    """P16: the oldest go; a cursor from before them is resolved by nothing."""
    kept = limits.EPOCH_BOUNDARIES_MAX
    for _ in range(kept + 3):
        last = await shard.take_over()
    assert await shard.client.hlen(f"{{s:{SHARD}}}:epochs") == kept
    assert await shard.boundary(last - kept, last) == -1
    assert await shard.boundary(last - kept - 1, last) is None


async def test_only_shards_have_boundaries(shard: Shard) -> None:
    for resource in ("ob:1", "cs:1", "writers:1"):
        assert isinstance(await shard.leases.acquire(resource, "n", 1, "a", TTL_MS), Grant)
    assert await shard.client.keys("*:epochs") == []


async def test_a_damaged_boundary_is_an_error_not_a_guess(shard: Shard) -> None:
    await shard.take_over()
    await shard.client.hset(f"{{s:{SHARD}}}:epochs", "1", b"?")
    with pytest.raises(StoreError, match="epoch boundary"):
        await shard.boundary(0, 1)


async def test_epochs_that_were_lost_never_come_again(hot_client: RedisClient) -> None:
    """T-R2: an emptied store begins at the clock's seconds, and the shard says that W has to come back."""
    shard = Shard(hot_client)
    shard.leases = RedisLeaseStore(hot_client)
    before = await shard.take_over()
    assert abs(before - time.time()) < 120
    await shard.take_over()
    await hot_client.flushdb()
    await asyncio.sleep(2.1)  # the clock's seconds go on
    after = await shard.take_over()
    assert after > before + 1
    assert await shard.boundary(before, after) is None, "nobody knows what became of the old positions"
    state = await shard.store.watermark(SHARD)
    assert state.promised > 10**15, "readers wait until the owner has said how far W has to come"
    await shard.store.promise(SHARD, after, 7, 3)
    assert (await shard.store.watermark(SHARD)).promised == 7
    assert await shard.store.trim_watermark(SHARD, "t", 1) == 3
    await shard.store.promise(SHARD, after, -1, 2)
    assert (await shard.store.watermark(SHARD)).promised == -1
    assert await shard.store.trim_watermark(SHARD, "t", 1) == 3, "what is gone stays gone"
    with pytest.raises(FencedError):
        await shard.store.promise(SHARD, before, 9, 9)


async def test_positions_that_the_log_proves_stand_after_a_total_loss(hot_client: RedisClient) -> None:
    """T-R2, E8: rebased to where they are, not expired; epochs that the proof does not name stay unknown."""
    shard = Shard(hot_client)
    shard.leases = RedisLeaseStore(hot_client)
    first = await shard.take_over()
    await shard.write(4)
    before = await shard.take_over()
    await hot_client.flushdb()
    await asyncio.sleep(2.1)  # the clock's seconds go on
    after = await shard.take_over()
    await shard.store.promise(SHARD, after, 4, 1, KeptPositions(before, after, 9))
    assert await shard.boundary(before, after) == 9
    assert await shard.boundary(first, after) is None, "from before the proof"
    shard.tail = -1
    await shard.write(6)
    later = await shard.take_over()
    assert await shard.boundary(before, later) == 6, "and by the boundaries of all epochs since"
    assert await shard.boundary(after, later) == 6
    signer = CursorSigner(b"k" * 32)
    sync = SyncService(shard.store, shard.epochs, shard.boundaries, signer)
    address = MailboxAddress("acme", "ben", "phone", 9, SHARD, 9)
    for position, verdict in ((0, "CURSOR_EXPIRED"), (1, "CURSOR_REBASED"), (5, "CURSOR_REBASED")):
        with pytest.raises(SyncVerdict) as caught:
            await sync.open(address, signer.issue(address, before, position))
        assert caught.value.code == verdict, position
        if verdict == "CURSOR_REBASED":
            assert caught.value.fields["replay_from_seq"] == position + 1
    with pytest.raises(SyncVerdict, match="positions of that epoch are lost"):
        await sync.open(address, signer.issue(address, first, 5))
    await shard.client.hset(f"{{s:{SHARD}}}:epochs", "kept", b"?")
    with pytest.raises(StoreError, match="epoch boundary"):
        await shard.boundary(before, later)


async def test_a_restarted_store_leaves_out_what_it_may_have_given_and_lost(shard: Shard) -> None:
    """D4: the last grants may be gone, so their numbers are not given again; their positions are W's."""
    await shard.take_over()
    await shard.write(4)
    await shard.client.set(f"{{s:{SHARD}}}:run", "a run of the server before this one")
    after = await shard.take_over()
    assert after == 1 + 16
    assert [await shard.boundary(lost, after) for lost in (1, 2, 9, 16)] == [4, 4, 4, 4]
