"""Tracing one message through the five levels. Spec: §1."""

import json

import pytest

from qim_streams import hlc
from qim_streams.errors import StoreUnavailable
from qim_streams.records import OUTBOX_RELAYED, MessageRecord
from qim_streams.trace.model import Level, MessageTrace
from qim_streams.trace.rules import parse_message_id, sample
from qim_streams.trace.service import OUTBOX, TraceHint, TraceLimits, trace_message
from tests.unit.trace.world import ROOM, T0, TENANT, World

MEMBERS = {1: [64, 65], 4: [128], 9: [200, 201, 202, 203, 204, 205]}


async def through_all_levels(world: World) -> MessageRecord:
    """A message that has reached every level, among others."""
    for seq in range(1, 5):
        world.commit(world.message(seq, T0 - 100 + seq), T0 - 100 + seq)
    message = world.message()
    offset = world.commit(message, T0 + 2)
    world.commit(world.message(6, T0 + 50), T0 + 52)
    for step, shard in enumerate(world.members):
        world.log.append("qim.dispatch.v1", shard, T0 - 5, b"another dispatch")
        world.dispatch(message, shard, T0 + 5 + step)
        await world.materialise(message, shard, T0 + 9 + step)
    world.push(message, 1, 0, T0 + 12, devices=2)
    world.push(message, 9, 3, T0 + 15, devices=3)
    await world.archived(message, offset)
    return message


def levels(trace: MessageTrace) -> dict[str, Level]:
    """The levels by name."""
    return {level.name: level for level in trace.levels}


async def test_a_message_through_all_levels() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert trace.found
    assert trace.notes == []
    assert trace.message is not None
    assert (trace.message.conversation_id, trace.message.conversation_seq) == (ROOM, 5)
    assert trace.outbox is not None
    assert (trace.outbox.partition, trace.outbox.offset, trace.outbox.hot) == (world.partition, 4, True)
    by_level = levels(trace)
    assert [(one.reached, one.after_ms) for one in trace.levels] == [
        (True, 2), (True, 7), (True, 11), (True, 12), (True, None),
    ]  # fmt: skip
    assert by_level["DISPATCHED"].detail == "3 of 3 shards"
    assert [(one.shard, one.offset, one.recipients, one.lanes, one.covered) for one in trace.dispatches] == [
        (1, 1, 2, (0, 1), True), (4, 1, 1, (0,), True), (9, 1, 6, (8, 9, 10, 11, 12, 13), True),
    ]  # fmt: skip
    assert [(one.entries_sampled, one.entries_found) for one in trace.dispatches] == [(2, 2), (1, 1), (4, 4)]
    assert [(one.connection_shard, one.devices) for one in trace.pushes] == [(0, 2), (3, 3)]
    assert trace.archive is not None
    assert trace.archive.covered
    assert trace.archive.present


async def test_w_has_no_time_so_the_first_trace_of_it_counts() -> None:
    """A shard's push comes after its W has moved, and its page after the push."""
    world = World({1: [64], 4: [128]})
    message = world.message()
    world.commit(message, T0)
    for shard, done in ((1, 90), (4, 40)):
        world.dispatch(message, shard, T0 + 5)
        await world.materialise(message, shard, T0 + done)
    world.push(message, 1, 0, T0 + 30, devices=1)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert (levels(trace)["MAILBOXED"].after_ms, levels(trace)["PUSHED"].after_ms) == (40, 30)


async def test_the_json_form_is_plain_and_has_no_body() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    text = json.dumps(trace.to_json())
    assert message.message_id.hex() in text
    assert json.loads(text)["found"] is True
    assert "secret" not in text


async def test_the_conversation_narrows_the_search_to_its_partition() -> None:
    world = World(MEMBERS)
    message = world.message()
    world.commit(message, T0)
    for partition in range(8):
        for step in range(50):
            world.log.append(OUTBOX, partition, T0 + step, b"noise")
    wide = await trace_message(world.deps, TENANT, message.message_id)
    looked, world.log.looked_at = world.log.looked_at, 0
    narrow = await trace_message(world.deps, TENANT, message.message_id, TraceHint(ROOM))
    assert wide.found
    assert narrow.found
    assert world.log.looked_at < looked


async def test_a_message_on_its_way() -> None:
    """Two of three shards dispatched, one materialised, nothing pushed or archived."""
    world = World(MEMBERS)
    message = world.message()
    world.commit(message, T0 + 2)
    world.dispatch(message, 1, T0 + 5)
    world.dispatch(message, 4, T0 + 5)
    await world.materialise(message, 1, T0 + 8)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert {one.name: one.reached for one in trace.levels} == {
        "COMMITTED": True, "DISPATCHED": False, "MAILBOXED": False, "PUSHED": False, "ARCHIVED": False,
    }  # fmt: skip
    by_level = levels(trace)
    assert by_level["DISPATCHED"].detail == "2 of 3 shards"
    assert by_level["MAILBOXED"].detail == "W covers it in 1 of 3 shards; 2 of 3 sampled mailboxes have it"
    assert by_level["MAILBOXED"].at_ms is None
    assert [one.covered for one in trace.dispatches] == [True, False]


async def test_only_committed() -> None:
    world = World(MEMBERS)
    message = world.message()
    world.commit(message, T0 + 2, OUTBOX_RELAYED)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    by_level = levels(trace)
    assert by_level["COMMITTED"].detail.endswith("relayed")
    assert by_level["DISPATCHED"].reached is False
    assert by_level["MAILBOXED"].reached is False


async def test_an_entry_that_is_missing_though_w_covers_it_is_seen() -> None:
    """What a trace is for: the verdict comes from the mailboxes, not from W alone."""
    world = World({1: [64, 65]})
    message = world.message()
    world.commit(message, T0)
    world.dispatch(message, 1, T0 + 1)
    world.members[1] = [64]
    await world.materialise(message, 1, T0 + 2)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert trace.dispatches[0].covered
    assert levels(trace)["MAILBOXED"].reached is False


async def test_a_trimmed_mailbox_proves_nothing() -> None:
    world = World({1: [64, 65]})
    message = world.message()
    world.commit(message, T0)
    world.dispatch(message, 1, T0 + 1)
    await world.materialise(message, 1, T0 + 2)
    await world.mailboxes.trim(1, 1, TENANT, 64, 0)
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert (trace.dispatches[0].entries_sampled, trace.dispatches[0].entries_found) == (1, 1)
    assert levels(trace)["MAILBOXED"].reached is True


async def test_another_tenant_sees_nothing() -> None:
    """I16."""
    world = World(MEMBERS)
    message = await through_all_levels(world)
    trace = await trace_message(world.deps, "other", message.message_id)
    assert not trace.found
    assert trace.dispatches == []
    assert trace.outbox is None
    assert "not in qim.outbox.v1" in trace.notes[0]


async def test_an_unknown_message_gets_a_clear_answer() -> None:
    world = World(MEMBERS)
    await through_all_levels(world)
    trace = await trace_message(world.deps, TENANT, hlc.encode(T0 + 3, 9, 9))
    assert not trace.found
    assert "to the end" in trace.notes[0]
    assert [(one.name, one.reached) for one in trace.levels] == [("COMMITTED", None)]


async def test_a_bounded_search_says_that_it_gave_up() -> None:
    world = World(MEMBERS)
    for step in range(50):
        world.log.append(OUTBOX, world.partition, T0 + step, b"noise")
    message = world.message()
    world.commit(message, T0 + 50)
    limits = TraceLimits(entries_max=10)
    trace = await trace_message(world.deps, TENANT, message.message_id, limits=limits)
    assert not trace.found
    assert "not found in the first" in trace.notes[0]


async def test_an_id_of_a_clock_that_ran_ahead_is_found() -> None:
    """The HLC may be ahead of the record's time by up to two hours."""
    world = World(MEMBERS)
    message = world.message()._replace(message_id=hlc.encode(T0 + 3_600_000, 0, 7))
    world.commit(message, T0)
    for step in range(5):
        world.log.append(OUTBOX, world.partition, T0 + 1 + step, b"noise")
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert trace.found


async def test_a_message_whose_membership_version_is_gone_is_searched_everywhere() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)
    world.membership.shards.clear()
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert [one.shard for one in trace.dispatches] == [1, 4, 9]
    assert trace.shards_expected is None
    assert "every shard was searched" in trace.notes[0]
    assert "not known" in levels(trace)["DISPATCHED"].detail


async def test_an_archive_that_cannot_be_read_is_left_out() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)
    world.archive.unavailable = True
    trace = await trace_message(world.deps, TENANT, message.message_id)
    assert "ARCHIVED" not in levels(trace)
    assert "archive cannot be read" in trace.notes[0]


async def test_a_store_that_cannot_be_reached_is_an_error() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)

    async def refuse(wanted: object) -> list[bytes | None]:
        raise StoreUnavailable("redis: connection refused")

    world.hot.records = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await trace_message(world.deps, TENANT, message.message_id)


async def test_progress_names_each_log() -> None:
    world = World(MEMBERS)
    message = await through_all_levels(world)
    told: list[str] = []
    await trace_message(world.deps, TENANT, message.message_id, progress=told.append)
    assert [line.split(":")[0] for line in told] == [
        "qim.outbox.v1",
        "qim.dispatch.v1",
        "qim-mailbox-node-dispatch_progress-changelog",
        "qim.push.v1",
    ]


def test_message_ids_on_the_command_line() -> None:
    assert parse_message_id("00" * 16) == bytes(16)
    assert parse_message_id("0" * 31) is None
    assert parse_message_id("zz" * 16) is None
    assert parse_message_id("00 " * 16) is None
    assert parse_message_id("") is None


@pytest.mark.parametrize(
    ("count", "want"), [(0, []), (1, [1]), (2, [1, 9]), (3, [1, 5, 9]), (20, list(range(1, 10)))]
)
def test_samples_are_spread_and_hold_the_ends(count: int, want: list[int]) -> None:
    assert sample(range(1, 10), count) == want
