"""What devices hear of changed groups, on real sockets and in both encodings. Spec: §9 (SESSION_DELTA)."""

from collections.abc import AsyncIterator

import pytest

from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.wire import CODECS, JSON, MSGPACK, Codec
from qim_streams.wire.frames_group import GroupAdd
from qim_streams.wire.frames_sessions import SessionDelta, SessionTotals
from tests.support.gateway_world import GatewayWorld, WireClient

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        yield running


@BOTH
async def test_who_is_added_and_removed_hears_it_on_all_devices(world: GatewayWorld, codec: Codec) -> None:
    """ann adds ben, the operator removes him: both of his devices show it; eve hears nothing."""
    lists = world.session_world
    for name in ("ann", "ben", "eve"):
        lists.user(name, world.address(name).ordinal)
    lists.past.group({"ann": ((0, None),), "eve": ((0, None),)}, chat="team")
    lists.say("team", "ann", 4)
    async with (
        await WireClient.connect(world.url, codec) as ann,
        await WireClient.connect(world.url, codec) as phone,
        await WireClient.connect(world.url, JSON if codec.binary else MSGPACK) as laptop,
    ):
        await ann.sign_on("ann")
        await phone.sign_on("ben", device="phone")
        await laptop.sign_on("ben", device="laptop")
        members = {"ann": ((0, None),), "ben": ((4, None),), "eve": ((0, None),)}
        lists.past.group(members, chat="team")  # what the writer does
        await ann.call(GroupAdd(1, "team", ["ben"]))
        for device in (phone, laptop):
            (row,) = (await device.expect(SessionDelta)).rows
            assert (row.conversation_id, row.active, row.unread) == ("team", True, 0)
        lists.say("team", "ann", 2)
        lists.past.group(members | {"ben": ((4, 6),)}, chat="team")
        state = await world.writers.group(GroupCommand(GroupOp.GET, "acme", "ann", "team"), 1.0)
        removal = GroupCommand(GroupOp.REMOVE, "acme", None, "team", ("ben",))
        await world.services.sessions.entering.changed(removal, GroupState(state.conversation))
        for device in (phone, laptop):
            (row,) = (await device.expect(SessionDelta)).rows
            assert (row.active, row.unread, row.latest_seq) == (False, 0, 6)
            assert (await device.expect(SessionTotals)).badge == 0
        assert not [user for user, _, _ in lists.signals.told if user.user_id == "eve"]
