"""Who hears of a change of a group, and that nobody's trouble undoes it. Spec: §9 (SESSION_DELTA)."""

from typing import Any

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.membership.ports import Conversation
from qim_streams.sessions import group_changes
from qim_streams.sessions.entering import Entering
from qim_streams.sessions.group_changes import GroupChanges, concerned, decode_note, encode_note
from tests.support.history_world import TENANT
from tests.support.session_world import Directory, MemoryMembers, SessionWorld

ALWAYS = ((0, None),)


def command(op: GroupOp, *users: str, actor: str | None = "ann") -> GroupCommand:
    return GroupCommand(op, TENANT, actor, "team", users)


def state() -> GroupState:
    return GroupState(Conversation(TENANT, "team", "group", 1, 7, "", "", "", "", 9, 2, 1, "ann", False))


@pytest.mark.parametrize(
    ("op", "users", "actor", "whom"),
    [
        (GroupOp.CREATE, ["ben", "eve"], "ann", ["ben", "eve", "ann"]),
        (GroupOp.CREATE, ["ann", "ben"], "ann", ["ann", "ben"]),
        (GroupOp.ADD, ["ben"], "ann", ["ben"]),
        (GroupOp.ADD, ["ben"], None, ["ben"]),
        (GroupOp.JOIN, [], "ben", ["ben"]),
        (GroupOp.LEAVE, [], "ben", ["ben"]),
        (GroupOp.REMOVE, ["ben"], "ann", ["ben"]),
        (GroupOp.SET_ROLE, ["ben"], "ann", []),
        (GroupOp.GET, [], "ann", []),
    ],
)
def test_whom_a_change_concerns(op: GroupOp, users: list[str], actor: str | None, whom: list[str]) -> None:
    assert concerned(command(op, *users, actor=actor)) == whom


def test_a_note_is_its_conversation() -> None:
    assert decode_note(encode_note("team")) == "team"
    assert decode_note(group_changes.NOTE) is None
    assert decode_note(group_changes.NOTE + b"not an id") is None
    assert decode_note(group_changes.NOTE + b"\xff\xfe") is None


async def test_who_is_named_hears_and_nobody_else() -> None:
    world = SessionWorld()
    for name in ("ann", "ben"):
        world.user(name)
    changes = GroupChanges(Directory(world), MemoryMembers(world.past.tier), world.signals)
    await changes.happened(command(GroupOp.REMOVE, "ben"))
    assert world.signals.told == [(world.user("ben"), "", encode_note("team"))]


@pytest.mark.parametrize(("most", "told"), [(3, {"ann", "ben", "eve"}), (2, set())])
async def test_all_hear_that_a_group_ends_unless_they_are_many(
    monkeypatch: pytest.MonkeyPatch, most: int, told: set[str]
) -> None:
    monkeypatch.setattr(group_changes, "MEMBERS_TOLD_MAX", most)
    world = SessionWorld()
    world.past.group(dict.fromkeys(("ann", "ben", "eve"), ALWAYS), chat="team")
    changes = GroupChanges(Directory(world), MemoryMembers(world.past.tier), world.signals)
    for op in (GroupOp.DISMISS, GroupOp.UPDATE):
        world.signals.told.clear()
        await changes.happened(command(op))
        assert {user.user_id for user, _, _ in world.signals.told} == told


async def test_a_change_stands_whatever_becomes_of_lists() -> None:
    """A store that is away: no row, nobody is told, no error. Rows that fail: told all the same."""
    world = SessionWorld()

    class Away(Directory):
        async def find(self, *_: Any) -> list[int | None]:
            raise StoreUnavailable("away")

    members = MemoryMembers(world.past.tier)
    gone = Entering(
        Away(world), world.projection, GroupChanges(Away(world), members, world.signals), world.clock
    )
    await gone.changed(command(GroupOp.ADD, "ben"), state())
    assert (world.projection.rows, world.signals.told) == ({}, [])
    half = Entering(
        Away(world), world.projection, GroupChanges(Directory(world), members, world.signals), world.clock
    )
    await half.changed(command(GroupOp.ADD, "ben"), state())
    assert [user.user_id for user, _, _ in world.signals.told] == ["ben"]
