"""The marker of a split in a batch: where records behind it go, and the page a split waits for. Spec: §11."""

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.fanout.progress import ConversationProgress
from qim_streams.sharding.marker import MARKER_KEY, encode_marker
from tests.unit.fanout.outbox import Batch, Bench, Record, conversation_in, message, record
from tests.unit.sharding.memory_log import split

CHAT = conversation_in(0)


def batch() -> Batch:
    """A message, the marker of version 1, and a message."""
    marker = Record(1, MARKER_KEY, encode_marker(1))
    return Batch(0, (record(0, message(1, CHAT)), marker, record(2, message(2, CHAT))), -1)


async def divided() -> Bench:
    """A worker whose shard 5 was split."""
    bench = Bench()
    bench.mappings = await split({5: 9}, groups=8)
    bench.restart()
    assert await bench.coordinator.start_position(0) == 0
    return bench


async def test_the_page_behind_a_marker_is_written_with_its_batch() -> None:
    """Nobody waits for the next checkpoint: users who move hear nothing until a split is settled."""
    bench = await divided()
    await bench.coordinator.handle([batch()])
    page = ConversationProgress(bench.table).read(0)
    assert (page.dispatched_through, page.mapping_version) == (2, 1)
    made = bench.log.dispatches()
    assert {one.target_mailbox_shard for one in made if one.conversation_seq == 1} == {2, 5}
    assert {one.target_mailbox_shard for one in made if one.conversation_seq == 2} <= {2, 5, 8}
    assert {one.extra[:1] for one in made if one.conversation_seq == 2} == {(1,)}


async def test_a_batch_without_one_waits_for_its_checkpoint() -> None:
    bench = await divided()
    await bench.coordinator.handle([Batch(0, (record(0, message(1, CHAT)),), -1)])
    assert ConversationProgress(bench.table).read(0).dispatched_through == -1


async def test_a_marker_of_a_version_that_is_not_known_yet_is_asked_for_again() -> None:
    bench = Bench()
    assert await bench.coordinator.start_position(0) == 0
    with pytest.raises(StoreUnavailable, match="mapping version 1"):
        await bench.coordinator.handle([batch()])
    assert not bench.log.dispatches()
