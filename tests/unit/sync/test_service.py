"""Opening sessions: verdicts over the real store rules, rebase, hints (C16, E2, E8, X8)."""

import pytest

from qim_streams.errors import StoreUnavailable, SyncVerdict
from qim_streams.placement import LANES
from qim_streams.sync.boundaries import EpochBoundary
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.service import PENDING_ROWS_MAX, SyncService
from tests.support.mailbox_world import ADDRESS, SHARD, MailboxWorld

SIGNER = CursorSigner(b"k" * 32)


def service(world: MailboxWorld) -> SyncService:
    """The service over the world."""
    return SyncService(world.store, world.epochs, world.epochs, SIGNER)


async def world_of(count: int) -> MailboxWorld:
    """A mailbox with `count` entries at 0, 1, ..."""
    world = MailboxWorld()
    for seq in range(count):
        await world.write(seq)
    return world


async def test_an_empty_cursor_opens_from_now() -> None:
    """Spec: §8: sync_to_seq = W, nothing offline."""
    world = await world_of(5)
    for token in (None, ""):
        opening = await service(world).open(ADDRESS, token)
        assert (opening.after_seq, opening.sync_to_seq, opening.pending_entries) == (4, 4, 0)
        opening.session.check_complete(4)


async def test_a_cursor_opens_with_hints() -> None:
    """The hints count the range; beyond a bound they estimate it from how dense its beginning is."""
    world = await world_of(PENDING_ROWS_MAX + 20)
    opening = await service(world).open(ADDRESS, SIGNER.issue(ADDRESS, 1, PENDING_ROWS_MAX + 10))
    assert opening.pending_entries == 9
    assert opening.pending_bytes > 9 * 20
    opening = await service(world).open(ADDRESS, SIGNER.issue(ADDRESS, 1, -1))
    assert opening.pending_entries == PENDING_ROWS_MAX + 20


async def test_a_takeover_rebases_and_the_new_cursor_is_good() -> None:
    """E8, Spec §11: an older epoch is exchanged, once; the exchanged cursor opens."""
    world = await world_of(5)
    old = SIGNER.issue(ADDRESS, 1, 2)
    world.take_over()
    with pytest.raises(SyncVerdict) as caught:
        await service(world).open(ADDRESS, old)
    assert caught.value.code == "CURSOR_REBASED"
    assert caught.value.fields["replay_from_seq"] == 3
    opening = await service(world).open(ADDRESS, str(caught.value.fields["new_cursor"]))
    assert (opening.after_seq, opening.sync_to_seq) == (2, 4)


async def test_a_position_that_stands_but_is_not_replayed_yet_waits() -> None:
    """T-R2: the boundary says that the log had it, W is still below: later, not never."""
    world = await world_of(3)
    old = SIGNER.issue(ADDRESS, 1, 4)
    world.take_over()
    world.epochs.boundaries[SHARD, 2] = EpochBoundary(0, (5,) * LANES)
    with pytest.raises(StoreUnavailable, match="being written again"):
        await service(world).open(ADDRESS, old)
    await world.write(4)
    with pytest.raises(SyncVerdict) as caught:
        await service(world).open(ADDRESS, old)
    assert (caught.value.code, caught.value.fields["replay_from_seq"]) == ("CURSOR_REBASED", 5)


async def test_a_position_from_the_future_is_refused_at_once() -> None:
    """E2: the store went back; the client is told, not left waiting."""
    world = await world_of(5)
    for epoch, position in ((1, 5), (2, 3)):
        with pytest.raises(SyncVerdict, match="CURSOR_INVALID"):
            await service(world).open(ADDRESS, SIGNER.issue(ADDRESS, epoch, position))


async def test_an_expired_cursor_asks_for_a_rebuild() -> None:
    """A trim above the position, also when the epoch is old: EXPIRED comes first."""
    world = await world_of(5)
    token = SIGNER.issue(ADDRESS, 1, 1)
    world.trim(2)
    world.take_over()
    with pytest.raises(SyncVerdict) as caught:
        await service(world).open(ADDRESS, token)
    assert (caught.value.code, caught.value.fields) == ("CURSOR_EXPIRED", {"rebuild_required": True})


async def test_lost_positions_are_expired() -> None:
    """Nobody knows what the change of epoch did: rebuild, never AUTH_OK."""

    class Unknown:
        async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
            return None

    world = await world_of(5)
    world.take_over()
    sync = SyncService(world.store, world.epochs, Unknown(), SIGNER)
    with pytest.raises(SyncVerdict, match="CURSOR_EXPIRED"):
        await sync.open(ADDRESS, SIGNER.issue(ADDRESS, 1, 2))


async def test_a_takeover_in_the_middle_of_auth_cuts_no_cursor_short() -> None:
    """The epoch was read, then a new owner moved W: the session's cursor names the epoch of that W."""
    world = await world_of(5)

    class Moved:
        async def current(self, shard: int) -> int:
            epoch = world.epochs.epoch
            world.take_over()
            await world.write(5)
            return epoch

    sync = SyncService(world.store, Moved(), world.epochs, SIGNER)
    opening = await sync.open(ADDRESS, None)
    assert (opening.sync_to_seq, opening.here.shard_epoch) == (5, world.epochs.epoch)
    cursor = sync.cursor(ADDRESS, opening.here.shard_epoch, opening.session.complete())
    assert (await service(world).open(ADDRESS, cursor)).after_seq == 5


async def test_after_a_loss_what_lies_above_the_boundary_is_pulled_again() -> None:
    """§14.4: the store forgot seqs 3 and 4, a new owner wrote them again; the device has them already."""
    world = await world_of(3)
    before = world.store.snapshot()
    await world.write(3)
    await world.write(4)
    cursor = SIGNER.issue(ADDRESS, 1, 4)
    world.store.restore(before)
    world.tail = 2
    world.take_over()
    with pytest.raises(SyncVerdict, match="CURSOR_INVALID"):  # not yet written again: explicit, not a wait
        await service(world).open(ADDRESS, cursor)
    await world.write(3)
    await world.write(4)
    with pytest.raises(SyncVerdict) as caught:
        await service(world).open(ADDRESS, cursor)
    assert (caught.value.code, caught.value.fields["replay_from_seq"]) == ("CURSOR_REBASED", 3)


async def test_a_mailbox_that_lags_behind_what_was_promised_is_waited_for() -> None:
    """C16, Spec §11 rule 3: old rows are never an answer, whatever the cursor; a forged one is told nothing
    more. Once W is back where it was, the newer cursor opens where it stood."""
    world = await world_of(5)
    newer = SIGNER.issue(ADDRESS, 1, 4)
    before = world.store.snapshot()
    await world.write(5)
    await world.write(6)
    world.store.restore(before)  # W stands at 4 again, the owner knows that it was at 6
    await world.store.promise(SHARD, 1, 6, -1)
    for token in (newer, SIGNER.issue(ADDRESS, 1, 6), None, "forged"):
        with pytest.raises(StoreUnavailable, match="being written again"):
            await service(world).open(ADDRESS, token)
    world.tail = 4
    await world.write(5)
    with pytest.raises(StoreUnavailable):
        await service(world).open(ADDRESS, newer)
    await world.write(6)
    opening = await service(world).open(ADDRESS, SIGNER.issue(ADDRESS, 1, 6))
    assert (opening.after_seq, opening.sync_to_seq, opening.pending_entries) == (6, 6, 0)
    assert (await service(world).open(ADDRESS, newer)).pending_entries == 2
