"""Notes of changed groups become deltas that a device takes, whatever the user does meanwhile. Spec: §9."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qim_streams.client.session_book import SessionBook
from qim_streams.gateway.list_changes import ListChanges
from qim_streams.gateway.session_rows import delta_frame
from qim_streams.gateway.session_totals import SessionTotalsTeller
from qim_streams.placement import mailbox_shard
from qim_streams.sessions.group_changes import encode_note
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.frames_sessions import SessionDelta
from tests.support.history_world import TENANT
from tests.support.session_world import SHARDS, SessionWorld
from tests.support.waiting import eventually

ALWAYS = ((0, None),)


class Bench:
    """The changes of a gateway, and what devices of ann got."""

    def __init__(self) -> None:
        self.world = SessionWorld()
        self.world.past.group({"ann": ALWAYS}, chat="mine")
        totals = SessionTotalsTeller(self.world.badges, self.world.signals, self.world.clock)
        self.changes = ListChanges(self.world.lists, self.world.states, totals)
        self.got: dict[str, list[Any]] = {}

    def note(self, chat: str, device: str = "phone") -> None:
        """A device's session hears one."""
        user = self.world.user("ann")
        address = MailboxAddress(TENANT, "ann", device, user.ordinal, mailbox_shard(TENANT, "ann", SHARDS), 0)
        self.changes.heard(address, encode_note(chat), self.got.setdefault(device, []).append)

    async def frames(self, device: str = "phone") -> list[SessionDelta]:
        """What a device got, once that is something."""
        await eventually(lambda: self.got.get(device), what="a delta")
        return self.got[device]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.changes.close()


async def test_many_notes_are_one_frame_for_every_device(bench: Bench) -> None:
    for number in range(5):
        bench.world.past.group({"ann": ALWAYS}, chat=f"g{number}")
        bench.note(f"g{number}")
    bench.note("g0", "laptop")
    bench.note("nowhere")
    (frame,) = await bench.frames()
    assert {row.conversation_id for row in frame.rows} == {f"g{number}" for number in range(5)}
    assert all(row.active for row in frame.rows)
    assert bench.got["laptop"] == [frame]


async def test_a_conversation_of_others_is_not_told(bench: Bench) -> None:
    """A note that somebody made up shows nobody anything."""
    bench.world.past.group({"ben": ALWAYS}, chat="theirs")
    bench.note("theirs")
    await eventually(lambda: bench.changes.is_done, what="the look")
    assert bench.got["phone"] == []


async def test_who_was_let_go_sees_it_and_the_order_of_the_list_is_kept(bench: Bench) -> None:
    """active false, nothing unread, and no message that was said after him."""
    world = bench.world
    world.past.group({"ann": ((0, 3),), "ben": ALWAYS}, chat="team")
    world.say("team", "ben", 5)
    await world.saw("ann", "team", 3)
    bench.note("team")
    (frame,) = await bench.frames()
    (row,) = frame.rows
    assert (row.active, row.unread, row.latest_seq, row.activity) == (False, 0, 3, 3)


async def test_a_newcomer_stands_where_his_list_has_him(bench: Bench) -> None:
    """The group is where the time of the join puts it, also after a mark: not where its last message was."""
    world = bench.world
    world.past.group({"ann": ((5, None),), "ben": ALWAYS}, chat="team")
    world.say("team", "ben", 5)
    await world.saw("ann", "team", 900)
    bench.note("team")
    (frame,) = await bench.frames()
    assert [(row.activity, row.active, row.unread) for row in frame.rows] == [(900, True, 0)]
    changed = await world.actions.set_mute(world.actor("ann"), "team", True)
    assert changed.row.activity == 900


async def test_the_newest_delta_is_never_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark of another device in the middle of the reading: all is done again, above that mark's delta."""
    world, book, lists = bench.world, SessionBook(), bench.world.lists
    marks: list[SessionDelta] = []
    world.tell = lambda actor, changed: marks.append(
        delta_frame(changed.mailbox_seq, changed.order, [changed.row])
    )
    rows_of = lists.rows_of

    async def interrupted(*args: Any) -> Any:
        found = await rows_of(*args)
        if not marks:
            await world.actions.set_mute(world.actor("ann", "laptop"), "mine", True)
        return found

    monkeypatch.setattr(lists, "rows_of", interrupted)
    world.past.group({"ann": ALWAYS}, chat="team")
    bench.note("team")
    (frame,) = await bench.frames()
    assert book.take_delta(marks[0])
    assert book.take_delta(frame), "else the device would not show the group"
    assert set(book.rows) == {"mine", "team"}


async def test_a_store_that_is_away_costs_the_hint_and_nothing_else(bench: Bench) -> None:
    bench.world.states.unavailable = True
    bench.note("mine")
    await eventually(lambda: bench.changes.is_done, what="the end")
    assert bench.got["phone"] == []
    bench.world.states.unavailable = False
    bench.note("mine")
    assert len(await bench.frames()) == 1
    await asyncio.sleep(0)
