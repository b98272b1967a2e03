"""Hostile and broken clients on real sockets: nothing crashes, nothing grows, everything ends (P16, P17)."""

import asyncio
import random
import struct
import time
import tracemalloc

import aiohttp
import pytest

from qim_streams import limits
from qim_streams.wire import JSON, MSGPACK, Codec
from qim_streams.wire.examples import CLIENT_EXAMPLES
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    Error,
    LiveLost,
    MailboxBatch,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    SyncComplete,
)
from tests.support.gateway_world import GatewayWorld, WireClient, token
from tests.support.waiting import eventually

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: qim.v1+msgpack\r\n\r\n"
)


def masked(payload: bytes, opcode: int = 2, fin: bool = True) -> bytes:
    """A WebSocket frame of a client."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([0x80 | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", len(payload))
    return head + bytes(4) + payload


async def raw_socket(world: GatewayWorld) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket whose bytes the test writes itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    writer.write(UPGRADE)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"101" in head.split(b"\r\n")[0]
    return reader, writer


@pytest.mark.parametrize(
    "request_bytes",
    [
        UPGRADE,
        b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\xff\r\n\r\n",
    ],
    ids=["upgrade", "readiness", "nothing there", "noise"],
)
async def test_no_answer_names_what_the_server_is_made_of(request_bytes: bytes) -> None:
    """Neither Python nor aiohttp, in no version: a stranger would know which published weakness to try."""
    async with GatewayWorld().running() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
        writer.write(request_bytes)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.")
        assert b"server: qim\r\n" in head
        assert b"python" not in head
        assert b"aiohttp" not in head
        writer.close()


async def test_a_slow_reader_costs_itself() -> None:
    """T-W1: it gets LIVE_LOST, its queue stays bounded, the others notice nothing, pulls have it all."""
    async with GatewayWorld(outbound_queue_bytes_max=524_288).running() as world:
        users = ["ben", *[f"u{number}" for number in range(200)]]
        shard = world.address("ben").shard
        other = next(user for user in users[1:] if world.address(user).shard == shard)
        reader, writer = await raw_socket(world)
        cursor = world.signer.issue(world.address("ben", "phone"), 1, -1)
        writer.write(masked(MSGPACK.encode(Auth(1, token("ben"), "phone", cursor))))
        await eventually(lambda: len(world.registry) == 1)
        writer.write(masked(MSGPACK.encode(SyncComplete(2, -1))))
        async with await WireClient.connect(world.url) as fast:
            await fast.sign_on(other)
            await fast.go_online()
            await world.ready("ben")
            await world.ready(other)
            slow = next(s for s in world.registry.sessions() if s.address.user_id == "ben")
            peak = 0
            for _ in range(400):
                seq = await world.commit("ben", other, body=b"b" * 20_000)
                await world.push("ben", seq)
                await world.push(other, seq)
                peak = max(peak, slow.outbound.size)
                await fast.pushed(1)
            assert peak < 524_288 + 2 * 65_536
            assert world.counters.live_lost == 1
        writer.close()
        async with await WireClient.connect(world.url) as ben:
            auth = await ben.sign_on("ben", cursor)
            after, found = auth.after_seq, 0
            while after < auth.sync_to_seq:
                batch = await ben.pull(after, auth.sync_to_seq)
                after, found = batch.covered_through_seq, found + len(batch.entries)
            assert found == 400
        del reader


async def test_a_lost_live_stream_goes_on_after_a_pull() -> None:
    """LIVE_LOST, a pull from the last position, and the stream continues without a gap."""
    world = GatewayWorld(outbound_queue_bytes_max=524_288)
    async with world.running(), await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben", world.signer.issue(world.address("ben"), 1, -1))
        await ben.go_online()
        await world.ready("ben")
        seqs = [await world.commit("ben", body=b"b" * 30_000) for _ in range(300)]
        for seq in seqs:
            await world.push("ben", seq)
        seen: list[int] = []
        while True:
            frame = await ben.receive()
            if type(frame) is LiveLost:
                break
            seen += [event.mailbox_seq for event in frame.events]
        assert seen == seqs[: len(seen)]
        assert len(seen) < 300
        at = seen[-1]
        while at < frame.lane_watermark:
            batch = await ben.pull(at, frame.lane_watermark)
            seen += [event.mailbox_seq for event in batch.entries]
            at = batch.covered_through_seq
        await world.deliver("ben")
        while len(seen) < 301:
            frame = await ben.receive()
            assert type(frame) is PushEvents, frame
            seen += [event.mailbox_seq for event in frame.events]
        assert seen == [*seqs, seqs[-1] + 1]
        assert world.counters.live_lost == 1


async def test_a_client_that_never_reads_is_not_read() -> None:
    """1,000 pipelined PULLs and a client that does not read: bounded answers, then silence, no crash."""
    async with GatewayWorld(outbound_queue_bytes_max=524_288).running() as world:
        for _ in range(30):
            await world.commit("ben", body=b"b" * 30_000)
        reader, writer = await raw_socket(world)
        cursor = world.signer.issue(world.address("ben"), 1, -1)
        writer.write(masked(MSGPACK.encode(Auth(1, token("ben"), "phone", cursor))))
        await eventually(lambda: len(world.registry) == 1)
        session = world.registry.sessions()[0]
        peak = 0
        for number in range(5_000):
            writer.write(masked(MSGPACK.encode(PullMailbox(number, -1, 29))))
            if number % 50 == 0:
                await asyncio.sleep(0.001)
                peak = max(peak, session.outbound.size)
        peak = max(peak, session.outbound.size)
        assert peak < 524_288 + limits.PULL_WINDOW * 300_000
        async with await WireClient.connect(world.url) as other:
            await other.sign_on("ann")
        writer.transport.abort()
        await eventually(lambda: len(world.registry) == 0)
        del reader


async def test_oversize_messages_end_the_connection_unread() -> None:
    """T-X2: a length prefix of 2^63, one byte over the limit, endless fragments."""
    async with GatewayWorld().running() as world:
        limit = world.settings.frame_bytes_max
        bombs = [
            b"\x82\xff" + struct.pack(">Q", 2**63 - 1) + bytes(4) + b"x" * 1000,
            b"\x82\xff" + struct.pack(">Q", limit + 1) + bytes(4) + b"x" * 1000,
            masked(b"x" * 100_000, fin=False) + masked(b"x" * 100_000, 0, fin=False) * 5,
        ]
        tracemalloc.start()
        for bomb in bombs:
            reader, writer = await raw_socket(world)
            writer.write(bomb)
            try:
                answer = await asyncio.wait_for(reader.read(), 5)
                assert (answer[0], struct.unpack(">H", answer[2:4])[0]) == (0x88, 1009)
            except ConnectionResetError:
                pass  # what the server did not read made the kernel say it its own way
            writer.close()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * limit


async def test_bytes_that_are_no_frames() -> None:
    """T-F1 through a socket: every message is answered with a code or ends the connection."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    samples = [MSGPACK.encode(frame) for frame in CLIENT_EXAMPLES.values()]
    async with GatewayWorld().running() as world:
        for _ in range(60):
            async with await WireClient.connect(world.url) as client:
                data = bytearray(rng.choice(samples)) if rng.random() < 0.7 else bytearray(rng.randbytes(40))
                for _ in range(rng.randrange(1, 5)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                await client.send_raw(bytes(data))
                await client.send(Ping(1))
                code = 0
                try:
                    while type(await client.receive()) is not Pong:
                        pass
                except ConnectionError:
                    code = int(client.socket.close_code or 0)
                assert code == 0 or 4100 <= code < 4600
        async with await WireClient.connect(world.url) as good:
            await good.sign_on("ben")


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=lambda c: c.subprotocol)
async def test_the_wrong_kind_of_message(codec: Codec) -> None:
    """Text on the binary subprotocol and the other way round: BAD_FRAME."""
    world = GatewayWorld()
    async with world.running(), await WireClient.connect(world.url, codec) as client:
        if codec is MSGPACK:
            await client.socket.send_str('{"t":"PING","rid":1}')
        else:
            await client.socket.send_bytes(b"\x82\xa1t\xa4PING\xa3rid\x01")
        assert (await client.expect(Error)).name == "BAD_FRAME"
        assert await client.closed() == 4100


async def test_no_subprotocol_is_refused() -> None:
    """The handshake names what is offered; it is not guessed."""
    async with GatewayWorld().running() as world, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(world.url)
        assert caught.value.status == 400


async def test_silent_connections_end_by_the_deadline() -> None:
    """T-X1: no HTTP request, half a request, a socket without AUTH, half a frame: all are closed."""
    async with GatewayWorld(auth_deadline_s=0.3).running() as world:
        silent = await asyncio.open_connection("127.0.0.1", world.server.port)
        half = await asyncio.open_connection("127.0.0.1", world.server.port)
        half[1].write(UPGRADE[:40])
        unsaid = await raw_socket(world)
        partial = await raw_socket(world)
        partial[1].write(masked(MSGPACK.encode(Auth(1, token("ben"), "phone")))[:20])
        async with await WireClient.connect(world.url) as polite:
            assert (await polite.expect(Error)).name == "AUTH_TIMEOUT"
            assert await polite.closed() == 4204
        for reader, writer in (silent, half, unsaid, partial):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readuntil(b"never"), 5)
            writer.close()
        await eventually(lambda: not world.server.sockets)


async def test_an_idle_session_ends() -> None:
    """Silence beyond idle_timeout_ms: IDLE_TIMEOUT; a PING in time keeps the session."""
    async with GatewayWorld(idle_timeout_ms=600, ping_interval_ms=200).running() as world:
        idle, alive = await WireClient.connect(world.url), await WireClient.connect(world.url)
        await idle.sign_on("ben")
        await alive.sign_on("ann")

        async def keep_alive() -> None:
            while True:
                pong = await alive.call(Ping(1))
                assert (type(pong), pong.next_ping_interval_ms) == (Pong, 200)
                await asyncio.sleep(0.1)

        keeper = asyncio.create_task(keep_alive())
        assert (await idle.expect(Error)).name == "IDLE_TIMEOUT"
        assert await idle.closed() == 4208
        assert not keeper.done()
        keeper.cancel()
        assert len(world.registry) == 1
        await idle.close()
        await alive.close()


async def test_too_many_connections() -> None:
    """The one above the bound gets a code, the others stay."""
    async with GatewayWorld(connections_max=2).running() as world:
        first, second = await WireClient.connect(world.url), await WireClient.connect(world.url)
        await first.sign_on("ben")
        async with await WireClient.connect(world.url) as third:
            answer = await third.expect(Error)
            assert (answer.name, answer.temporary) == ("TOO_MANY_CONNECTIONS", True)
            assert await third.closed() == 4206
        assert type(await second.call(Auth(1, token("ann"), "phone"))) is AuthOk
        await first.close()
        await second.close()


async def test_a_storm_of_reconnects() -> None:
    """T-X7, I10: many clients at once with old cursors: all sync, some are told to wait a little."""
    async with GatewayWorld().running() as world:
        users = [f"u{number}" for number in range(180)]
        cursors = {user: world.signer.issue(world.address(user), 1, -1) for user in users}
        for user in users:
            await world.commit(user)
        clients = await asyncio.gather(*(WireClient.connect(world.url) for _ in users))
        auths = await asyncio.gather(
            *(client.sign_on(user, cursors[user]) for client, user in zip(clients, users, strict=True))
        )
        delays = [auth.sync_delay_hint_ms for auth in auths]
        assert max(delays) > 0
        assert max(delays) <= 5_000
        assert delays.count(0) >= 100
        for client, auth, user in zip(clients, auths, users, strict=True):
            batch = await client.pull(-1, auth.sync_to_seq)
            assert [event.mailbox_seq for event in batch.entries] == [world.written[user][0][0]]
            assert type(await client.go_online()) is OnlineReady
        assert world.services.syncing == 0
        await asyncio.gather(*(client.close() for client in clients))
        await eventually(lambda: len(world.registry) == 0)


async def test_nothing_follows_a_close() -> None:
    """An event for a session that was just told to go is not written behind the close frame."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        seq = await world.commit("ben")
        world.registry.sessions()[0].fail("SESSION_REPLACED", "elsewhere")
        await world.push("ben", seq)
        assert (await ben.expect(Error)).name == "SESSION_REPLACED"
        assert await ben.closed() == 4205


async def test_chunked_bytes_give_the_same_frames() -> None:
    """T-F2: the same bytes in any cuts give the same answers."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with GatewayWorld().running() as world:
        for _ in range(3):
            await world.commit("ben")
        cursor = world.signer.issue(world.address("ben"), 1, -1)
        frames = [
            Auth(1, token("ben"), "phone", cursor),
            PullMailbox(2, -1, 2),
            Ping(3),
            CLIENT_EXAMPLES["SEND_MESSAGE"],
        ]
        for _ in range(12):
            reader, writer = await raw_socket(world)
            writer.transport.set_write_buffer_limits(0)
            answers: list[bytes] = []
            for frame in frames:
                data = masked(MSGPACK.encode(frame))
                cuts = sorted(rng.sample(range(1, len(data)), rng.randrange(0, 6)))
                for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                    writer.write(data[start:end])
                    await writer.drain()
                    await asyncio.sleep(0)
                answers.append(await read_frame(reader))
            kinds = [type(MSGPACK.decode_server(answer)).__name__ for answer in answers]
            assert kinds == ["AuthOk", "MailboxBatch", "Pong", "SendAck"]
            batch = MSGPACK.decode_server(answers[1])
            assert isinstance(batch, MailboxBatch)
            assert len(batch.entries) == 3
            writer.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The payload of one unmasked WebSocket frame."""
    head = await asyncio.wait_for(reader.readexactly(2), 5)
    size = head[1]
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    return await reader.readexactly(size)
