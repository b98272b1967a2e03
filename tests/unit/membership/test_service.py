"""GroupService and direct chats on the fakes: idempotent, settled, in the change log, faults included."""

import asyncio
from typing import Any

import pytest

from qim_streams.commit.outcome import SendStatus
from qim_streams.commit.ports import DirectChat
from qim_streams.errors import AdmissionRefused, FencedError, StoreUnavailable
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.bitmaps import decode
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.membership.ports import Conversation, Member
from qim_streams.membership.rows import decode_log_row
from qim_streams.testing.memory_tier import Fault, MemoryHotTier
from qim_streams.testing.memory_writer import Died, WriterRig
from tests.support.waiting import eventually

Op = GroupOp


@pytest.fixture
async def rig() -> WriterRig:
    rig = WriterRig(MemoryHotTier(lambda *_: 0), [], members_max=20)
    await rig.take(0)
    return rig


async def run(rig: WriterRig, op: GroupOp, actor: str | None, *users: str, **more: object) -> GroupState:
    command = GroupCommand(op, "t", actor, "g", users, **more)  # type: ignore[arg-type]
    owned = rig.writer.epoch_of("t", "g")
    assert owned is not None
    return await rig.groups.execute(*owned, command)


async def refused(rig: WriterRig, op: GroupOp, actor: str | None, *users: str, **more: object) -> str:
    with pytest.raises(AdmissionRefused) as caught:
        await run(rig, op, actor, *users, **more)
    return caught.value.code


def in_log(rig: WriterRig) -> tuple[Conversation, dict[str, Member]]:
    """Head and members as a rebuild would read them."""
    head, members = None, {}
    for key, value in rig.change_log.latest().items():
        _, row = decode_log_row(key, value)
        if isinstance(row, Conversation):
            head = row
        else:
            members[row.user_id] = row
    assert head is not None
    return head, members


async def assert_logged(rig: WriterRig) -> None:
    """The change log equals the store, and nothing is unsettled."""
    head, members = in_log(rig)
    stored = await rig.membership.conversation("t", "g")
    assert stored is not None
    assert (head.version, head.name, head.members_active) == (
        stored.version,
        stored.name,
        stored.members_active,
    )
    everyone = {member.user_id: member for member in await rig.membership.everyone("t", "g")}
    assert members == everyone
    assert not rig.tier.unsettled.get(0)


async def test_the_life_of_a_group(rig: WriterRig) -> None:
    made = await run(rig, Op.CREATE, "ann", "bob", "ann", fields={"name": "Friends"})
    assert (made.conversation.members_active, made.conversation.name) == (2, "Friends")
    await run(rig, Op.ADD, "ann", "cat", "dan")
    await run(rig, Op.SET_ROLE, "ann", "bob", role="admin")
    await run(rig, Op.REMOVE, "bob", "dan")
    await run(rig, Op.UPDATE, "bob", fields={"join_policy": "open", "name": "All"})
    await run(rig, Op.JOIN, "eve")
    await run(rig, Op.LEAVE, "ann")
    state = await run(rig, Op.GET, "cat", limit=10)
    assert [(m.user_id, m.role) for m in state.members] == [
        ("bob", "owner"),
        ("cat", "member"),
        ("eve", "member"),
    ]
    assert state.next_user_id is None
    await assert_logged(rig)
    assert (await run(rig, Op.DISMISS, "bob")).conversation.dismissed
    assert await refused(rig, Op.JOIN, "zoe") == "DISMISSED"
    await assert_logged(rig)


async def test_every_command_may_be_repeated(rig: WriterRig) -> None:
    commands: list[tuple[GroupOp, str, tuple[str, ...], dict[str, object]]] = [
        (Op.CREATE, "ann", ("bob",), {"fields": {"join_policy": "open"}}),
        (Op.ADD, "ann", ("cat",), {}),
        (Op.JOIN, "dan", (), {}),
        (Op.SET_ROLE, "ann", ("cat",), {"role": "admin"}),
        (Op.REMOVE, "ann", ("bob",), {}),
        (Op.LEAVE, "dan", (), {}),
        (Op.UPDATE, "ann", (), {"fields": {"name": "x"}}),
        (Op.DISMISS, "ann", (), {}),
    ]
    for op, actor, users, more in commands:
        first = await run(rig, op, actor, *users, **more)
        again = await run(rig, op, actor, *users, **more)
        assert again == first, op
    await assert_logged(rig)


async def test_an_id_that_is_taken(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, "ann")
    assert await refused(rig, Op.CREATE, "bob") == "CONVERSATION_EXISTS"
    command = GroupCommand(Op.CREATE, "t", "ann", direct_conversation_id("t", "ann", "bob"))
    with pytest.raises(AdmissionRefused, match="NOT_ALLOWED"):
        await rig.groups.execute(0, 1, command)


async def test_refusals_leave_nothing_behind(rig: WriterRig) -> None:
    assert await refused(rig, Op.ADD, "ann", "bob") == "NO_CONVERSATION"
    await run(rig, Op.CREATE, "ann", "bob")
    before = (list(rig.change_log.rows), dict(rig.tier.ordinals))
    assert await refused(rig, Op.ADD, "bob", "new1") == "NOT_ALLOWED"
    assert await refused(rig, Op.ADD, "ann", *(f"new{n}" for n in range(19))) == "GROUP_TOO_LARGE"
    assert await refused(rig, Op.CREATE, "zoe", fields={"name": "\0"}) == "CONVERSATION_EXISTS"
    assert await refused(rig, Op.GET, "eve") == "NOT_MEMBER"
    assert await refused(rig, Op.JOIN, "eve") == "NOT_ALLOWED"
    assert await refused(rig, Op.LEAVE, "eve") == "NOT_MEMBER"
    assert await refused(rig, Op.ADD, "ann") == "FIELD_INVALID"
    assert await refused(rig, Op.ADD, "ann", "no:id") == "FIELD_INVALID"
    assert await refused(rig, Op.GET, "ann", limit=1_001) == "FIELD_INVALID"
    assert (list(rig.change_log.rows), dict(rig.tier.ordinals)) == before


async def test_the_operator_may_all_of_it(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, None, "ann", "bob")
    await run(rig, Op.ADD, None, "cat")
    await run(rig, Op.SET_ROLE, None, "cat", role="owner")
    state = await run(rig, Op.GET, None, limit=5)
    assert [(m.user_id, m.role) for m in state.members] == [
        ("ann", "admin"),
        ("bob", "member"),
        ("cat", "owner"),
    ]
    assert (await run(rig, Op.DISMISS, None)).conversation.dismissed
    assert await refused(rig, Op.JOIN, None) == "FIELD_INVALID"


async def test_pages(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, "ann", *(f"u{n}" for n in range(9)))
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        state = await run(rig, Op.GET, "ann", limit=4, after_user_id=after)
        seen += [member.user_id for member in state.members]
        after = state.next_user_id
    assert seen == ["ann", *(f"u{n}" for n in range(9))]
    assert (await run(rig, Op.GET, "ann")).members == ()


async def test_changes_at_once_are_done_one_after_the_other(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, "ann", fields={"join_policy": "open"})
    await asyncio.gather(*(run(rig, Op.JOIN, f"u{n}") for n in range(19)))
    state = await run(rig, Op.GET, "ann")
    assert (state.conversation.members_active, state.conversation.version) == (20, 20)
    await assert_logged(rig)


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST])
async def test_an_unknown_outcome_is_settled_by_repeating(rig: WriterRig, fault: Fault) -> None:
    await run(rig, Op.CREATE, "ann")
    rig.tier.faults.extend([fault, fault, Fault.REFUSED])
    state = await run(rig, Op.ADD, "ann", "bob")
    assert (state.conversation.version, state.conversation.members_active) == (2, 2)
    await assert_logged(rig)


async def test_a_store_that_refuses_at_once_is_the_callers_to_know(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, "ann")
    rig.tier.faults.append(Fault.REFUSED)
    with pytest.raises(StoreUnavailable):
        await run(rig, Op.ADD, "ann", "bob")
    assert (await run(rig, Op.GET, "ann")).conversation.version == 1


async def test_a_change_that_the_store_loses_at_once_is_logged_as_it_was_made(rig: WriterRig) -> None:
    """T-R2: the rows come with the change; read a moment later they would say that nobody left."""
    await run(rig, Op.CREATE, "ann", "bob")
    before, apply = rig.tier.remember(), rig.membership.apply

    async def apply_and_lose(*args: Any) -> Any:
        made = await apply(*args)
        rig.tier.roll_back(before)
        return made

    rig.membership.apply = apply_and_lose  # type: ignore[method-assign]
    with pytest.raises(Died):  # at settling: the store says what happened to it
        await run(rig, Op.REMOVE, "ann", "bob")
    head, members = in_log(rig)
    assert (head.version, head.members_active, members["bob"].active) == (2, 1, False)


@pytest.mark.parametrize(
    ("op", "actor", "users"), [(Op.ADD, "ann", ("bob",)), (Op.GET, "bob", ()), (Op.JOIN, "cat", ())]
)
async def test_nothing_is_answered_out_of_a_store_that_lost_a_change(
    rig: WriterRig, op: GroupOp, actor: str, users: tuple[str, ...]
) -> None:
    """T-R2: neither that bob is there still, nor that the group is closed still."""
    await run(rig, Op.CREATE, "ann", "bob")
    before = rig.tier.remember()
    await run(rig, Op.REMOVE, "ann", "bob")
    await run(rig, Op.UPDATE, "ann", fields={"join_policy": "open"})
    rig.tier.roll_back(before)
    with pytest.raises(Died):
        await run(rig, op, actor, *users)


async def test_an_old_owner_changes_nothing(rig: WriterRig) -> None:
    await run(rig, Op.CREATE, "ann")
    other = WriterRig(rig.tier, [], node="w1", boot=2)
    await other.take(0)
    with pytest.raises(FencedError):
        await run(rig, Op.ADD, "ann", "bob")
    assert await other.changes.settle_all(0, 2) == 0


async def test_what_the_change_log_lacks_is_made_good_by_the_next_owner(rig: WriterRig) -> None:
    """Killed between the change and its rows."""
    await run(rig, Op.CREATE, "ann", "bob")
    appended = rig.change_log.append
    rig.change_log.append = lambda rows: asyncio.get_running_loop().create_future()  # type: ignore[method-assign]
    lost = asyncio.create_task(run(rig, Op.ADD, "ann", "cat"))
    await eventually(lambda: rig.tier.unsettled[0], what="the change is in the store")
    lost.cancel()
    rig.change_log.append = appended  # type: ignore[method-assign]
    assert len(in_log(rig)[1]) == 2
    heir = WriterRig(rig.tier, [], boot=2, change_log=rig.change_log)
    await heir.take(0)
    assert await heir.changes.settle_all(0, 2) == 1
    await assert_logged(heir)
    assert await heir.changes.settle_all(0, 2) == 0


async def test_rows_that_are_not_acknowledged_end_the_process(rig: WriterRig) -> None:
    from qim_streams.errors import LogAppendError

    failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    failed.set_exception(LogAppendError("gone"))
    rig.change_log.append = lambda rows: failed  # type: ignore[method-assign]
    with pytest.raises(Died):
        await run(rig, Op.CREATE, "ann")
    assert rig.deaths


# -- direct chats


async def test_a_direct_chat_is_made_once_with_its_snapshot(rig: WriterRig) -> None:
    chat = direct_conversation_id("t", "ann", "bob")
    (ann,) = await rig.directory.assign("t", ["ann"])
    wanted = DirectChat("t", chat, "ann", ann, "bob")
    done = await rig.direct_chats.ensure_direct(0, 1, [wanted, wanted])
    assert done is not None
    await done
    head = await rig.membership.conversation("t", chat)
    assert head is not None
    assert (head.kind, head.members_active, head.version, head.members_max) == ("direct", 2, 1, 2)
    members = rig.snapshots.get("t", chat, 1)
    assert members is not None
    (bob,) = await rig.directory.find("t", ["bob"])
    ordinals = {o for _, packed in members.values() for o in memoryview(packed).cast("I")}
    assert ordinals == {ann, bob}
    assert not rig.tier.unsettled[0]
    assert len(rig.change_log.rows) == 3
    assert await rig.direct_chats.ensure_direct(0, 1, [wanted]) is None
    assert len(rig.change_log.rows) == 3


async def test_a_chat_with_oneself_has_one_member(rig: WriterRig) -> None:
    outcome = await rig.writer.send(await rig.direct("ann", "ann", "m1"))
    assert outcome.status is SendStatus.COMMITTED
    chat = direct_conversation_id("t", "ann", "ann")
    everyone = await rig.membership.everyone("t", chat)
    assert [m.user_id for m in everyone] == ["ann"]
    (version_map,) = await rig.reader.versions([("t", chat, 1)])
    assert version_map is not None
    (blob,) = await rig.reader.bitmaps([("t", chat, *item) for item in version_map.items()])
    assert blob is not None
    assert set(decode(blob)) == {everyone[0].ordinal}
