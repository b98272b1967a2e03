"""Bodies of pulls: read once for many readers, for a few seconds only, never across tenants."""

import pytest

from qim_streams.errors import SyncVerdict
from qim_streams.records import MessageRecord, UserMailboxEntry
from qim_streams.sync.bodies import FRESH_S, PulledBodies
from qim_streams.wire.events import common_body

ID = bytes(range(16))
ENTRY = UserMailboxEntry(0, ID, "room", 7, "alice", 3, 1_000, None)


def record(body: bytes, message_id: bytes = ID) -> MessageRecord:
    return MessageRecord(
        7, 1, "t", "room", message_id, message_id, "alice", 0, "d", "c", 1, 1_000, 0, 0, body
    )


class Tier:
    """A place for records that counts its reads."""

    def __init__(self, rows: dict[tuple[str, str, int], bytes]) -> None:
        self.rows, self.asked = rows, 0

    async def records(self, wanted: list[tuple[str, str, int]]) -> list[bytes | None]:
        self.asked += len(wanted)
        return [self.rows.get(place) for place in wanted]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_body_is_read_once_while_it_is_fresh_and_again_afterwards() -> None:
    hot, clock = Tier({("t", "room", 7): record(b"first").encode()}), Clock()
    bodies = PulledBodies(hot, None, clock)
    assert (
        await bodies.load("t", [ENTRY]) == await bodies.load("t", [ENTRY]) == [common_body(record(b"first"))]
    )
    assert hot.asked == 1
    hot.rows["t", "room", 7] = record(b"second").encode()
    clock.now_s += FRESH_S
    assert await bodies.load("t", [ENTRY]) == [common_body(record(b"second"))]


async def test_a_tenant_never_gets_what_was_read_for_another() -> None:
    bodies = PulledBodies(Tier({("t", "room", 7): record(b"x").encode()}), None, Clock())
    await bodies.load("t", [ENTRY])
    with pytest.raises(SyncVerdict, match="BODY_UNAVAILABLE"):
        await bodies.load("other", [ENTRY])


def edit(body: bytes, revision: int = 1) -> MessageRecord:
    """An edit of message 7 at 9."""
    changed = record(body, bytes(range(1, 17)))._replace(conversation_seq=9, kind=1, state=1)
    return changed._replace(extra=(0, 7, revision))


OF_EDIT = UserMailboxEntry(1, bytes(range(1, 17)), "room", 9, "alice", 0, 1_000, None)


@pytest.mark.parametrize("archived", [False, True])
async def test_an_edit_is_pulled_as_its_target_is_by_now(archived: bool) -> None:
    """A body that was replaced or recalled since is given to nobody, whichever tier has the target."""
    recalled = record(b"")._replace(state=2, extra=(4_095,)).encode()
    own, target = {("t", "room", 9): edit(b"gone").encode()}, {("t", "room", 7): recalled}
    hot, archive = (Tier(own), Tier(target)) if archived else (Tier(own | target), Tier({}))
    expected = common_body(edit(b"")._replace(state=2))
    assert await PulledBodies(hot, archive, Clock()).load("t", [OF_EDIT]) == [expected]
    assert b"target_seq" in expected


async def test_an_edit_without_a_newer_target_is_pulled_as_it_is() -> None:
    for rows in ({}, {("t", "room", 7): record(b"old").encode()}, {("t", "room", 7): b"?"}):
        hot = Tier(rows | {("t", "room", 9): edit(b"new").encode()})
        assert await PulledBodies(hot, Tier({}), Clock()).load("t", [OF_EDIT]) == [common_body(edit(b"new"))]


async def test_the_archive_is_asked_for_what_the_hot_tier_lacks_or_holds_wrongly() -> None:
    archive = Tier({("t", "room", 7): record(b"kept").encode()})
    for hot in (
        Tier({}),
        Tier({("t", "room", 7): record(b"not it", bytes(16)).encode()}),
        Tier({("t", "room", 7): b"?"}),
    ):
        assert await PulledBodies(hot, archive, Clock()).load("t", [ENTRY]) == [common_body(record(b"kept"))]
