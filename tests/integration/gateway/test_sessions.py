"""Sessions over time: tokens, replacement, presence, leases, draining (T-X4, I1, I5, C14, P18)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jwt
import pytest

from qim_streams.gateway.crowd import AGAIN_MIN_MS
from qim_streams.gateway.ports import DeviceKey
from qim_streams.gateway.shard import SILENCE_S
from qim_streams.gateway.tokens import mint_token
from qim_streams.ownership.ports import Grant
from qim_streams.records import PushBatch, PushItem, Recipient
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    Error,
    Goodbye,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    SendAck,
    SendMessage,
)
from tests.support.gateway_world import JWT_SECRET, TENANT, GatewayWorld, WireClient, token
from tests.support.waiting import eventually


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        yield running


def forged(**claims: Any) -> dict[str, Any]:
    """Good claims with some replaced; None leaves one out."""
    good = {"tenant": TENANT, "sub": "ben", "aud": "qim", "exp": int(time.time()) + 600}
    return {name: value for name, value in (good | claims).items() if value is not None}


async def test_bad_tokens_end_the_connection(world: GatewayWorld) -> None:
    """T-X4: alg none, wrong key, expired, wrong audience, missing or wrong claims, damaged."""
    good = token("ben")
    unsigned = jwt.encode(forged(), None, algorithm="none")
    bad = [
        "",
        "x",
        "a.b.c",
        unsigned,
        good[:-2],
        good + "A",
        jwt.encode(forged(), "w" * 40, algorithm="HS256"),
        jwt.encode(forged(), JWT_SECRET, algorithm="HS384"),
        *(
            jwt.encode(forged(**claims), JWT_SECRET, algorithm="HS256")
            for claims in (
                {"aud": "other"},
                {"aud": None},
                {"sub": None},
                {"tenant": None},
                {"exp": None},
                {"tenant": "a:b"},
                {"sub": "a\0b"},
                {"tenant": 5},
                {"exp": "soon"},
                {"nbf": int(time.time()) + 600},
            )
        ),
    ]
    for one in bad:
        async with await WireClient.connect(world.url) as client:
            answer = await client.call(Auth(1, one, "phone"))
            assert (answer.name, answer.temporary) == ("BAD_TOKEN", False), one
            assert one not in answer.detail or not one
            assert await client.closed() == 4202
    expired = mint_token(JWT_SECRET.encode(), "qim", TENANT, "ben", 10, int(time.time()) - 600)[0]
    async with await WireClient.connect(world.url) as client:
        assert (await client.call(Auth(1, expired, "phone"))).name == "TOKEN_EXPIRED"
        assert await client.closed() == 4203
    assert len(world.registry) == 0


async def test_cursors_of_others_are_invalid(world: GatewayWorld) -> None:
    """T-X4, P19: a cursor of another user, device or tenant opens nothing."""
    await world.commit("ben")
    mine = world.address("ben")
    foreign = [
        world.signer.issue(world.address("ann"), 1, -1),
        world.signer.issue(mine._replace(device_id="laptop"), 1, -1),
        world.signer.issue(mine._replace(tenant_id="other"), 1, -1),
        world.signer.issue(mine._replace(shard=mine.shard + 1), 1, -1),
        world.signer.issue(mine, 1, 99),
        world.signer.issue(mine, 2, 0),
    ]
    for cursor in foreign:
        async with await WireClient.connect(world.url) as client:
            answer = await client.call(Auth(1, token("ben"), "phone", cursor))
            assert (answer.name, answer.temporary) == ("CURSOR_INVALID", False)


async def test_a_newer_session_replaces_the_older(world: GatewayWorld) -> None:
    """Same device, same gateway: the old one is told and closed, without taking the presence down."""
    async with await WireClient.connect(world.url) as old, await WireClient.connect(world.url) as new:
        first = await old.sign_on("ben")
        second = await new.sign_on("ben")
        assert second.session_epoch > first.session_epoch
        assert (await old.expect(Error)).name == "SESSION_REPLACED"
        assert await old.closed() == 4205
        await eventually(lambda: len(world.server.sockets) == 1)
        await world.services.presence.flushed(5)
        assert [said for _, said in world.announced() if said is None] == []
        async with await WireClient.connect(world.url) as other:
            await other.sign_on("ben", device="laptop")
            assert len(world.registry) == 2
            assert type(await new.call(Ping(1))) is Pong


async def test_a_session_replaced_elsewhere_ends() -> None:
    """Another gateway opened a newer session: the next refresh notices, and writes no tombstone."""
    async with GatewayWorld(presence_refresh_s=0.2).running() as world:
        async with await WireClient.connect(world.url) as ben:
            await ben.sign_on("ben")
            world.devices.epochs[DeviceKey(TENANT, "ben", "phone")] += 5
            while type(frame := await ben.receive()) is not Error:
                pass
            assert frame.name == "SESSION_REPLACED"
        await eventually(lambda: len(world.registry) == 0)
        await world.services.presence.flushed(5)
        assert None not in [said for _, said in world.announced()]


async def test_a_crowd_is_sent_away_before_it_makes_everybody_late(world: GatewayWorld) -> None:
    """I10: no handshakes while a second of sign-ons waits; who is inside is told when to come again."""
    async with await WireClient.connect(world.url) as inside:
        for _ in range(world.services.turns.crowd.room):
            world.services.turns.crowd.enter()
        refusal = await inside.call(Auth(1, token("ben"), "phone", None))
        assert (type(refusal), refusal.name) == (Error, "OVERLOADED")
        assert refusal.retry_after_ms >= AGAIN_MIN_MS
        with pytest.raises(aiohttp.WSServerHandshakeError) as sent_away:
            await WireClient.connect(world.url)
        assert sent_away.value.status == 503
        assert sent_away.value.headers is not None
        assert 1 <= int(sent_away.value.headers["Retry-After"]) <= 2
        while world.services.turns.crowd.waiting:
            world.services.turns.crowd.leave()
        await inside.sign_on("ben")
    assert world.services.turns.crowd.waiting == 0


async def test_presence_is_announced_refreshed_and_taken_back() -> None:
    """Record at AUTH, again every refresh, tombstone at the end."""
    async with GatewayWorld(presence_refresh_s=0.2).running() as world:
        async with await WireClient.connect(world.url) as ben:
            auth = await ben.sign_on("ben")
            await world.ready("ben")
            await eventually(lambda: len(world.announced()) >= 3)
            assert {said for _, said in world.announced()} == {int(auth.connection_id)}
            assert int(auth.connection_id) >> 32 == 3
        await eventually(lambda: world.announced()[-1] == ("ben", None))


async def test_stale_recipients_are_dropped_and_reported(world: GatewayWorld) -> None:
    """Wrong connection, epoch, tenant or shard: nothing is sent; a session that ended gets a tombstone."""
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        gone = await WireClient.connect(world.url)
        ann = await gone.sign_on("ann")
        await gone.close()
        await eventually(lambda: world.announced()[-1] == ("ann", None))
        session = world.registry.sessions()[0]
        good = (session.connection_id, session.session_epoch)
        shard = world.address("ben").shard
        tombstones = len([1 for _, said in world.announced() if said is None])

        def batch(connection_id: int, epoch: int, tenant: str = TENANT, place: int = shard) -> PushBatch:
            item = PushItem(7, 0, b"\x80", [Recipient(connection_id, epoch, b"e" * 16, 3, 0, None)], 1)
            return PushBatch(tenant, place, 1, [item], [])

        await world.deliveries.deliver(
            [
                batch(good[0] + 77, good[1]),
                batch(good[0], good[1] - 1),
                batch(*good, tenant="other"),
                batch(*good, place=shard + 1),
                batch(int(ann.connection_id), ann.session_epoch),
            ]
        )
        assert world.counters.stale_recipients == 5
        assert type(await ben.call(Ping(1))) is Pong
        await eventually(lambda: len([1 for _, said in world.announced() if said is None]) == tombstones + 1)


async def test_presence_that_nobody_answers_is_written_anew(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No PresenceReady: tombstone and record again, so that the mailbox stage takes the device for new."""
    monkeypatch.setattr("qim_streams.gateway.sweeper.READY_WAIT_S", 0.05)
    async with await WireClient.connect(world.url) as ben:
        auth = await ben.sign_on("ben")
        mine = int(auth.connection_id)
        await eventually(lambda: len(world.announced()) >= 3)
        assert [said for _, said in world.announced()[:3]] == [mine, None, mine]
        await world.ready("ben")
        await world.sweeper.sweep(asyncio.get_running_loop().time() + 100)
        await world.services.presence.flushed(5)
        count = world.counters.presence_repeated
        await world.sweeper.sweep(asyncio.get_running_loop().time() + 50)
        assert world.counters.presence_repeated == count


async def test_a_session_before_and_across_leases() -> None:
    """No lease: clients sync and send. A lease: they are announced. Another: new ids, no gap, no repeat."""
    async with GatewayWorld().running(shard=None) as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        assert type(await ben.go_online()) is OnlineReady
        assert type(await ben.call(SendMessage(1, "m", b"b", "team"))) is SendAck
        assert world.announced() == []
        world.shard.granted(Grant("cs:2", 8))
        await eventually(lambda: len(world.announced()) == 2)
        assert world.reader.partition == 2
        first = world.registry.sessions()[0].connection_id
        assert (first >> 32, world.announced()[-1]) == (8, ("ben", first))
        await world.ready("ben")
        early = await world.deliver("ben")
        world.shard.lost("cs:2")
        await eventually(lambda: not world.reader.is_reading)
        missed = await world.commit("ben")
        world.shard.granted(Grant("cs:1", 9))
        await eventually(lambda: world.announced()[-1][1] not in (None, first))
        held = await world.deliver("ben")
        await world.ready("ben", missed)
        assert [e.mailbox_seq for e in await ben.pushed(3)] == [early, missed, held]


async def test_draining_says_goodbye(world: GatewayWorld) -> None:
    """SIGTERM: GOODBYE, owed answers, close, tombstones; nobody is let in."""
    world.writers.automatic = False
    async with await WireClient.connect(world.url) as ben, await WireClient.connect(world.url) as ann:
        await ben.sign_on("ben")
        await ann.sign_on("ann")
        await ann.send(SendMessage(1, "m-1", b"b", "team"))
        await ann.call(Ping(1))
        draining = asyncio.create_task(world.server.drain())
        goodbye = await ben.expect(Goodbye)
        assert goodbye.reason == "shutting_down"
        assert 500 <= goodbye.retry_after_ms <= 3_500
        assert type(await ann.receive()) is Goodbye
        refused = await ann.call(SendMessage(2, "m-2", b"b", "team"))
        assert (refused.name, refused.client_message_id) == ("SHUTTING_DOWN", "m-2")
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await WireClient.connect(world.url)
        world.writers.answer()
        assert (await ann.expect(SendAck)).rid == 1
        assert (await ann.closed(), await ben.closed()) == (1001, 1001)
        await draining
        assert await world.services.presence.flushed(5)
        assert [said for _, said in world.announced()][-2:] == [None, None]


async def test_health(world: GatewayWorld) -> None:
    """/healthz always, /readyz while a ConnectionShard is served and its log answers (E4)."""
    base = f"http://127.0.0.1:{world.server.port}"

    async def status(http: aiohttp.ClientSession, path: str) -> int:
        async with http.get(base + path) as answer:
            return answer.status

    async def why_not(http: aiohttp.ClientSession) -> str:
        async with http.get(base + "/readyz") as answer:
            assert answer.status == 503
            said = await answer.json()
            assert (said["ready"], len(said["reasons"])) == (False, 1)
            return str(said["reasons"][0])

    async with aiohttp.ClientSession() as http:
        await eventually(lambda: world.shard.is_serving)
        assert (await status(http, "/healthz"), await status(http, "/readyz")) == (200, 200)
        world.reader.silent_s = SILENCE_S + 1
        assert "push log has not answered for 4 s" in await why_not(http)
        world.reader.silent_s = SILENCE_S
        assert await status(http, "/readyz") == 200
        world.shard.lost("cs:0")
        await eventually(lambda: not world.shard.is_serving)
        assert (await status(http, "/healthz"), await status(http, "/readyz")) == (200, 503)
        assert "no ConnectionShard" in await why_not(http)
        assert await status(http, "/ws") == 400
        assert await status(http, "/other") == 404


async def test_tenants_do_not_meet(world: GatewayWorld) -> None:
    """P18: the same user and device in two tenants are two sessions with mailboxes of their own."""
    await world.commit("ben")
    cursor = world.signer.issue(world.address("ben"), 1, -1)
    async with await WireClient.connect(world.url) as ours, await WireClient.connect(world.url) as theirs:
        await ours.sign_on("ben", cursor)
        answer = await theirs.call(Auth(1, token("ben", "other"), "phone"))
        assert type(answer) is AuthOk
        assert len(world.registry) == 2
        top = answer.sync_to_seq
        assert (await theirs.call(PullMailbox(2, -1, top))).entries == []
        assert len((await ours.pull(-1, 0)).entries) == 1


async def test_nothing_secret_is_logged(world: GatewayWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens, cursors and bodies stay out of the log, also when requests fail."""
    caplog.set_level("DEBUG")
    cursor = world.signer.issue(world.address("ben"), 1, -1)
    await world.commit("ben", body=b"SECRETBODY")
    world.hot.rows.clear()
    async with await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben", cursor)
        assert (await ben.pull(-1, 0)).name == "BODY_UNAVAILABLE"
    async with await WireClient.connect(world.url) as bad:
        await bad.call(Auth(1, token("ben")[:-3], "phone"))
    text = caplog.text
    assert json.dumps(cursor)[1:-1] not in text
    assert "SECRETBODY" not in text
    assert token("ben")[:40] not in text
