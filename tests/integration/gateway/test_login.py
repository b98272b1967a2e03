"""AUTH, sync and the login barrier on real sockets (A1, A4, A7, T-X3, P7, P8)."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from qim_streams.gateway.services import PULLS_AT_ONCE_MAX
from qim_streams.gateway.turns import AT_ONCE_MAX, Turns
from qim_streams.wire import CODECS, Codec
from qim_streams.wire.connection import State
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    Error,
    MailboxBatch,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    SyncComplete,
)
from tests.support.gateway_world import FakeOrdinals, GatewayWorld, WireClient, token
from tests.support.waiting import eventually

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        yield running


async def known_cursor(world: GatewayWorld, user: str) -> str:
    """A cursor that covers nothing."""
    return world.signer.issue(world.address(user), world.epochs.epoch, -1)


@BOTH
async def test_first_login_pull_and_push(world: GatewayWorld, codec: Codec) -> None:
    """The whole way of a session, in both encodings."""
    for _ in range(3):
        await world.commit("ben")
    async with await WireClient.connect(world.url, codec) as ben:
        auth = await ben.sign_on("ben", await known_cursor(world, "ben"))
        assert (auth.after_seq, auth.sync_to_seq, auth.has_offline) == (-1, 2, True)
        assert auth.pending_entry_count_hint == 3
        batch = await ben.pull(-1, 2)
        assert [event.mailbox_seq for event in batch.entries] == [0, 1, 2]
        assert batch.entries[0].message.body == b"hi"
        assert (batch.covered_through_seq, batch.has_more) == (2, False)
        ready = await ben.go_online()
        assert type(ready) is OnlineReady
        await world.ready("ben")
        await world.deliver("ben", b"live")
        (event,) = await ben.pushed(1)
        assert (event.mailbox_seq, event.message.body) == (3, b"live")
        again = await ben.pull(2, 3)
        assert again.entries == [event]
        assert again.cursor is not None


@BOTH
async def test_an_empty_cursor_completes_at_once(world: GatewayWorld, codec: Codec) -> None:
    """Spec: §8: AUTH with an empty cursor, SYNC_COMPLETE, ONLINE_READY."""
    await world.commit("ben")
    async with await WireClient.connect(world.url, codec) as ben:
        auth = await ben.sign_on("ben", "")
        assert (auth.has_offline, auth.sync_to_seq) == (False, 0)
        ready = await ben.go_online()
        assert type(ready) is OnlineReady
        opened = world.signer.open(ready.cursor, world.address("ben"))
        assert opened is not None
        assert opened.last_applied == 0


async def test_live_messages_before_sync_move_nothing(world: GatewayWorld) -> None:
    """A1: 500 offline, one live before the first PULL, the socket dies after 2 of 5 batches."""
    cursor = await known_cursor(world, "ben")
    for _ in range(500):
        await world.commit("ben")
    seen: dict[bytes, int] = {}
    covered: set[int] = set()
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben", cursor)
        await world.ready("ben")
        await world.deliver("ben")
        after = auth.after_seq
        for _ in range(2):
            batch = await ben.pull(after, auth.sync_to_seq, 100)
            after = batch.covered_through_seq
            covered.add(after)
            cursor = batch.cursor
            seen |= {event.message.message_id: event.mailbox_seq for event in batch.entries}
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben", cursor)
        assert auth.after_seq in covered
        after = auth.after_seq
        more = True
        while more:
            batch = await ben.pull(after, auth.sync_to_seq, 100)
            after, more = batch.covered_through_seq, batch.has_more
            seen |= {event.message.message_id: event.mailbox_seq for event in batch.entries}
            opened = world.signer.open(batch.cursor, world.address("ben"))
            assert opened is not None
            assert opened.last_applied == batch.covered_through_seq
        assert type(await ben.go_online()) is OnlineReady
    assert len(seen) == 501


async def test_the_barrier_splits_pull_and_push_exactly(world: GatewayWorld) -> None:
    """A4: what is at sync_to_seq comes by pull only, what is above by push only."""
    cursor = await known_cursor(world, "ben")
    at = await world.commit("ben")
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben", cursor)
        assert auth.sync_to_seq == at
        # Both are pushed before ONLINE_READY; a PresenceReady that lies in between promises the second.
        await world.push("ben", at)
        await world.ready("ben", at)
        above = await world.deliver("ben")
        batch = await ben.pull(-1, at)
        assert [event.mailbox_seq for event in batch.entries] == [at]
        assert type(await ben.go_online()) is OnlineReady
        (event,) = await ben.pushed(1)
        assert event.mailbox_seq == above
        await ben.send(Ping(99))
        assert type(await ben.receive()) is Pong


async def test_commits_during_auth_are_not_lost(world: GatewayWorld) -> None:
    """A4, A16: a message that becomes visible while AUTH reads the mailbox is pulled or pushed, once."""
    cursor = await known_cursor(world, "ben")
    await world.commit("ben")
    committed: list[int] = []

    def commit_now() -> None:
        committed.append(world.tails[world.address("ben").shard] + 1)
        task = asyncio.ensure_future(world.commit("ben"))
        tasks.append(task)

    tasks: list[asyncio.Future[int]] = []
    world.store.before_read = commit_now
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben", cursor)
        assert auth.sync_to_seq == 0
        await eventually(lambda: world.tails[world.address("ben").shard] == 1)
        # The mailbox stage had handled seq 1 before it heard of this connection: it will not push it.
        assert len((await ben.pull(-1, 0)).entries) == 1
        await ben.go_online()
        await world.ready("ben", 1)
        assert [event.mailbox_seq for event in await ben.pushed(1)] == [1]


async def test_late_presence_is_filled(world: GatewayWorld) -> None:
    """Messages between sync_to_seq and PresenceReady come by push, in order, with what was held."""
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        unpushed = [await world.commit("ben") for _ in range(5)]
        held = [await world.deliver("ben") for _ in range(3)]
        await world.ready("ben", unpushed[-1])
        assert [event.mailbox_seq for event in await ben.pushed(8)] == unpushed + held


async def test_frames_out_of_state(world: GatewayWorld) -> None:
    """T-X3: before AUTH, double AUTH, beyond sync_to_seq, early and forged SYNC_COMPLETE."""
    cursor = await known_cursor(world, "ben")
    await world.commit("ben")
    for frame in (PullMailbox(1, -1, 0), SyncComplete(1, 0)):
        async with await WireClient.connect(world.url) as early:
            answer = await early.call(frame)
            assert (answer.name, answer.rid) == ("NOT_AUTHENTICATED", 1)
            assert await early.closed() == 4200
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben", cursor)
        assert (await ben.call(Auth(7, token("ben"), "phone"))).name == "ALREADY_AUTHENTICATED"
        assert (await ben.pull(-1, 1)).name == "PULL_OUT_OF_RANGE"
        assert (await ben.pull(0, -1)).name == "PULL_OUT_OF_RANGE"
        for forged in (0, 1, -1):
            answer = await ben.call(SyncComplete(9, forged))
            assert (answer.name, answer.rid) == ("SYNC_INCOMPLETE", 9)
        assert type(await ben.pull(-1, 0)) is MailboxBatch
        assert (await ben.call(SyncComplete(9, 1))).name == "SYNC_INCOMPLETE"
        assert type(await ben.go_online()) is OnlineReady
        await world.commit("ben")
        assert len((await ben.pull(0, 1)).entries) == 1
        assert (await ben.pull(0, 2)).name == "PULL_OUT_OF_RANGE"


async def test_pipelined_pulls(world: GatewayWorld) -> None:
    """Four pulls at once are served; more get a code and the connection goes on."""
    cursor = await known_cursor(world, "ben")
    for _ in range(40):
        await world.commit("ben")
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben", cursor)
        for number in range(8):
            await ben.send(PullMailbox(100 + number, number * 10 - 1, min(number * 10 + 9, 39)))
        answers = [await ben.receive() for _ in range(8)]
        batches = [one for one in answers if type(one) is MailboxBatch]
        refused = [one.name for one in answers if type(one) is Error]
        assert len(batches) >= 4
        assert set(refused) <= {"PULL_WINDOW_EXCEEDED", "PULL_OUT_OF_RANGE"}
        cursors = [one.cursor for one in batches if one.cursor is not None]
        opened = [world.signer.open(one, world.address("ben")) for one in cursors]
        positions = [one.last_applied for one in opened if one is not None]
        assert positions == sorted(positions)
        assert positions[-1] == 39
        assert auth.sync_to_seq == 39
        assert type(await ben.go_online()) is OnlineReady


async def test_a_verdict_leaves_the_connection_open(world: GatewayWorld) -> None:
    """Rebased, expired and forged cursors are answered and AUTH may follow on the same socket."""
    for _ in range(4):
        await world.commit("ben")
    where = world.address("ben")
    old = world.signer.issue(where, world.epochs.epoch, 2)
    world.epochs.take_over()
    async with await WireClient.connect(world.url) as ben:
        rebased = await ben.call(Auth(1, token("ben"), "phone", old))
        assert (rebased.name, rebased.replay_from_seq) == ("CURSOR_REBASED", 3)
        await world.store.trim(where.shard, world.epochs.epoch, "acme", where.ordinal, 3)
        expired = await ben.call(Auth(2, token("ben"), "phone", rebased.new_cursor))
        assert (expired.name, expired.rebuild_required) == ("CURSOR_EXPIRED", True)
        auth = await ben.call(Auth(3, token("ben"), "phone"))
        assert type(auth) is AuthOk
        assert auth.trim_watermark == 3
    async with await WireClient.connect(world.url) as ben:
        for rid in range(3):
            assert (await ben.call(Auth(rid, token("ben"), "phone", "A" * 76))).name == "CURSOR_INVALID"
        assert (await ben.call(Auth(9, token("ben"), "phone"))).name == "AUTH_ATTEMPTS_EXCEEDED"
        assert await ben.closed() == 4207


async def test_trim_during_a_session_is_an_error(world: GatewayWorld) -> None:
    """A10: never an empty batch over a hole."""
    cursor = await known_cursor(world, "ben")
    for _ in range(4):
        await world.commit("ben")
    where = world.address("ben")
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben", cursor)
        await world.store.trim(where.shard, world.epochs.epoch, "acme", where.ordinal, 2)
        answer = await ben.pull(-1, 3)
        assert (answer.name, answer.rebuild_required) == ("CURSOR_EXPIRED", True)
        assert len((await ben.pull(2, 3)).entries) == 1


async def test_a_store_that_is_away_is_temporary(world: GatewayWorld) -> None:
    """AUTH is answered STORE_UNAVAILABLE and works again on the same connection."""
    world.devices.broken = True
    async with await WireClient.connect(world.url) as ben:
        answer = await ben.call(Auth(1, token("ben"), "phone"))
        assert (answer.name, answer.temporary, answer.rid) == ("STORE_UNAVAILABLE", True, 1)
        world.devices.broken = False
        assert type(await ben.call(Auth(2, token("ben"), "phone"))) is AuthOk


async def test_a_new_owner_leaves_no_gap(world: GatewayWorld) -> None:
    """The old owner dies between W and push: the new one's promise makes the gateway fill."""
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben", epoch=1)
        first = await world.deliver("ben")
        unpushed = await world.commit("ben")
        later = await world.commit("ben")
        await world.push("ben", later, epoch=2)
        await world.push("ben", unpushed, epoch=1)  # a late word of the old owner
        await world.ready("ben", unpushed, epoch=2)
        assert [event.mailbox_seq for event in await ben.pushed(3)] == [first, unpushed, later]


async def test_repeated_pushes_come_once(world: GatewayWorld) -> None:
    """C2: a push record that is read twice is one event for the client."""
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        seq = await world.deliver("ben")
        await world.push("ben", seq, seq)
        other = await world.deliver("ben")
        await ben.send(Ping(5))
        frames = [await ben.receive() for _ in range(3)]
        pushed = [e.mailbox_seq for f in frames if type(f) is PushEvents for e in f.events]
        assert pushed == [seq, other]


class SlowOrdinals(FakeOrdinals):
    """The first store that a sign-on asks: answers once `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.asking, self.most = asyncio.Event(), 0, 0

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port."""
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            await self.free.wait()
            return await super().assign(tenant_id, user_ids)
        finally:
            self.asking -= 1


async def test_I10_sign_ons_of_a_storm_ask_the_stores_in_turn() -> None:
    """Who waits for a turn and goes away takes none; everybody else is let in, a bounded number at once."""
    world = GatewayWorld()
    slow = world.ordinals = SlowOrdinals()
    async with world.running():
        world.services.turns = Turns(world.services.turns.crowd, 120.0)
        clients = [await WireClient.connect(world.url) for _ in range(AT_ONCE_MAX + 20)]
        try:
            for number, client in enumerate(clients):
                await client.send(Auth(1, token(f"u{number}"), "phone", None))
            sessions = [socket.session for socket in world.server.sockets]
            await eventually(
                lambda: all(one.connection.state is State.AUTHENTICATING for one in sessions),
                10,
                "every AUTH",
            )
            await eventually(lambda: slow.asking == AT_ONCE_MAX, 10, "the first ones to ask")
            gone = clients.pop()
            await gone.close()
            await eventually(lambda: len(world.server.sockets) == len(clients), 10, "the one that went")
            assert slow.asking == AT_ONCE_MAX
            slow.free.set()
            for client in clients:
                await client.expect(AuthOk, 10)
            assert (slow.most, slow.asking) == (AT_ONCE_MAX, 0)
        finally:
            for client in clients:
                await client.close()


async def test_I10_who_is_online_does_not_wait_behind_the_pulls_of_a_storm(world: GatewayWorld) -> None:
    """A refresh of presence is answered with a fill; the live stream rests until that is done."""
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        first = await world.deliver("ben")
        assert [event.mailbox_seq for event in await ben.pushed(1)] == [first]
        for _ in range(PULLS_AT_ONCE_MAX):
            await world.services.pull_slots.acquire()
        unpushed = await world.commit("ben")
        await world.ready("ben")
        later = await world.deliver("ben")
        assert [event.mailbox_seq for event in await ben.pushed(2)] == [unpushed, later]
