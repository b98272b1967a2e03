"""Readers of users who moved: mailboxes in two parts, cursors of the old shard, checkpoints.

Spec: §7, §9, §11.
"""

import pytest

from qim_streams.errors import StoreUnavailable, SyncVerdict
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup, Stretch
from qim_streams.records import pack_ordinals, unpack_ordinals
from qim_streams.sessions.projection_records import FIRST_EPOCH, Checkpoint
from qim_streams.sessions.whole_projection import joined
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.mailboxes import WholeMailboxes
from qim_streams.sharding.rules import FIRST_STEP
from qim_streams.sharding.targets import spread, version_at
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.service import SyncService
from tests.unit.sharding.memory_log import MemoryMappingLog, split, write_split

OLD, NEW, END, TENANT, USER = 0, 2, 5, "acme", 64
SIGNER = CursorSigner(b"k" * 32)
HERE = MailboxAddress(TENANT, "ann", "phone", USER, NEW, 0)
BEFORE = HERE._replace(shard=OLD)


class Epochs:
    """Shard 0 is at epoch 7 and shard 2 at epoch 3; nothing was lost at any change."""

    async def current(self, shard: int) -> int:
        return {OLD: 7, NEW: 3}[shard]

    async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        return {OLD: 400, NEW: -1}[shard]


async def mailboxes(*, old_through: int = 9, new: tuple[int, ...] = (0, 2)) -> MemoryMailboxStore:
    """Entries 1, 4 and, of somebody's mistake, 8 in the old shard; offsets `new` in the new one."""
    store = MemoryMailboxStore()
    for shard, epoch in ((OLD, 7), (NEW, 3)):
        store.grant(shard, epoch)
    before = -1
    for seq in [one for one in (1, 4, 8) if one <= old_through]:
        groups = [EntryGroup(TENANT, seq, 0, b"%d" % seq, [USER])]
        before = await store.write_and_advance(OLD, 7, groups, before, seq)
    if old_through > before:
        await store.write_and_advance(OLD, 7, [], before, old_through)
    before = -1
    for offset in new:
        seq = FIRST_STEP + offset
        groups = [EntryGroup(TENANT, seq, 0, b"n%d" % offset, [USER])]
        before = await store.write_and_advance(NEW, 3, groups, before, seq)
    return store


async def test_both_parts_are_one_mailbox() -> None:
    whole = WholeMailboxes(await mailboxes(), await split({OLD: END}))
    rows = await whole.read(NEW, TENANT, USER, -1, FIRST_STEP + 9, 10)
    assert [one.value for one in rows] == [b"1", b"4", b"n0", b"n2"], "what lies behind the end is not shown"
    assert [one.value for one in await whole.read(NEW, TENANT, USER, 1, FIRST_STEP, 1)] == [b"4"]
    assert (await whole.watermark(NEW)).lanes == (FIRST_STEP + 2,) * 64
    asked = [Stretch(NEW, TENANT, USER, *span) for span in ((4, END), (1, END), (END, FIRST_STEP))]
    assert await whole.anything(asked) == [False, True, True]
    assert [one.value for one in await whole.read(OLD, TENANT, USER, 4, 9, 10)] == [b"8"], "who stayed"


async def test_nothing_of_the_new_shard_is_shown_before_the_old_one_is_complete() -> None:
    whole = WholeMailboxes(await mailboxes(old_through=4), await split({OLD: END}))
    assert (await whole.watermark(NEW)).lanes == (4,) * 64
    whole = WholeMailboxes(await mailboxes(new=()), await split({OLD: END}))
    assert (await whole.watermark(NEW)).lanes == (FIRST_STEP - 1,) * 64


async def test_a_trim_of_the_old_shard_reaches_its_part() -> None:
    store = await mailboxes()
    whole = WholeMailboxes(store, await split({OLD: END}))
    await store.trim(OLD, 7, TENANT, USER, 1)
    assert await whole.trim_watermark(NEW, TENANT, USER) == 1
    await store.trim(OLD, 7, TENANT, USER, 8)
    assert await whole.trim_watermark(NEW, TENANT, USER) == END


@pytest.mark.parametrize(("claimed", "stands"), [(1, 1), (END, END), (8, END)])
async def test_a_cursor_of_the_old_shard_is_rebased_once(claimed: int, stands: int) -> None:
    """A8, I10: positions above the end were never the user's; the epoch is that of the new shard."""
    mappings = await split({OLD: END})
    sync = SyncService(WholeMailboxes(await mailboxes(), mappings), Epochs(), Epochs(), SIGNER, mappings)
    for epoch in (7, 5):
        with pytest.raises(SyncVerdict) as refused:
            await sync.open(HERE, SIGNER.issue(BEFORE, epoch, claimed))
        assert refused.value.code == "CURSOR_REBASED"
        assert refused.value.fields["replay_from_seq"] == stands + 1
        opening = await sync.open(HERE, str(refused.value.fields["new_cursor"]))
        assert (opening.after_seq, opening.sync_to_seq) == (stands, FIRST_STEP + 2)
    with pytest.raises(SyncVerdict, match="CURSOR_INVALID"):
        await sync.open(HERE, SIGNER.issue(BEFORE, 8, claimed))
    with pytest.raises(SyncVerdict, match="CURSOR_INVALID"):
        await sync.open(HERE, SIGNER.issue(HERE._replace(shard=1), 7, claimed))


async def test_a_takeover_of_the_new_shard_leaves_positions_of_the_old_part() -> None:
    mappings = await split({OLD: END})
    sync = SyncService(WholeMailboxes(await mailboxes(), mappings), Epochs(), Epochs(), SIGNER, mappings)
    with pytest.raises(SyncVerdict) as refused:
        await sync.open(HERE, SIGNER.issue(HERE, 2, 4))
    assert refused.value.fields["replay_from_seq"] == 5


async def test_who_has_not_heard_of_a_split_looks_before_a_cursor_is_refused() -> None:
    log = MemoryMappingLog()
    mappings = Mappings(2, log)
    write_split(log, {OLD: END})
    sync = SyncService(WholeMailboxes(await mailboxes(), mappings), Epochs(), Epochs(), SIGNER, mappings)
    with pytest.raises(StoreUnavailable, match="sign on again"):
        await sync.open(BEFORE, SIGNER.issue(HERE, 3, FIRST_STEP))
    assert mappings.current.version == 1


async def test_what_two_shards_vouch_for_together() -> None:
    parts = (await split({OLD: END})).current.parts(NEW)
    old, new = Checkpoint(FIRST_EPOCH, 9, 3), Checkpoint(FIRST_EPOCH, -1, -1)
    assert joined(parts, [old, new]) == Checkpoint(FIRST_EPOCH, FIRST_STEP - 1, -1)
    assert joined(parts, [old, None]) is None
    later = joined(parts, [Checkpoint(99, 4, 8), new])
    assert later is not None
    assert (later.epoch, later.offset, later.caught_up) == (99, 4, False)


async def test_members_go_to_the_shards_of_the_version() -> None:
    placement = (await split({OLD: END})).current
    ordinals = list(range(0, 640, 64))
    groups = {0: (4, pack_ordinals(ordinals)), 1: (5, pack_ordinals([1, 2]))}
    assert spread(groups, placement, 0) is groups
    found = spread(groups, placement, 1)
    assert sorted(found) == [0, 1, 2]
    assert found[1] == groups[1]
    shares = [unpack_ordinals(found[one][1] or b"") for one in (0, 2)]
    assert sorted(shares[0] + shares[1]) == ordinals
    assert spread({0: (4, None)}, placement, 1) == {0: (4, None), 2: (4, None)}
    assert spread({0: (4, pack_ordinals(shares[0]))}, placement, 1) == {0: (4, pack_ordinals(shares[0]))}
    turns = [(-1, 0), (7, 1)]
    assert [version_at(turns, one) for one in (0, 7, 8)] == [0, 0, 1]


async def test_a_process_that_starts_asks_a_broker_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was made just now has no leader for a moment."""
    monkeypatch.setattr("qim_streams.sharding.follower.START_RETRY_S", 0.001)
    log, failures = MemoryMappingLog(), [StoreUnavailable("Not leader for partition")] * 3
    read = log.read

    async def sometimes(start: int) -> tuple[list[bytes], int]:
        if failures:
            raise failures.pop()
        return await read(start)

    monkeypatch.setattr(log, "read", sometimes)
    with pytest.raises(StoreUnavailable):
        await Mappings(2, log).load()
    assert (await Mappings(2, log).load_at_start()).shards == 2
    assert not failures
