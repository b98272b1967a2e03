"""AUTH_OK: every field says what is true, on a real socket and in both encodings (Spec: §7)."""

import pytest

from qim_streams.mentions import Mentions
from qim_streams.records import decode_message
from qim_streams.wire import CODECS, Codec
from qim_streams.wire.frames import AuthOk
from tests.support.gateway_world import TENANT, GatewayWorld, WireClient

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)
ALWAYS = ((0, None),)
URL = "wss://chat.example/ws"


async def unread_of_ben(world: GatewayWorld) -> None:
    """Five unread in `team`, two of which name him, and three in `noise`, which he has muted."""
    lists = world.session_world
    ben = world.address("ben")
    lists.user("ben", ben.ordinal)
    for chat, count in (("team", 5), ("noise", 3)):
        lists.past.group({"ann": ALWAYS, "ben": ALWAYS}, chat=chat)
        await lists.saw("ben", chat, 5)
        lists.say(chat, "ann", count)
    rows = lists.past.tier.partition(0).records[TENANT, "team"]
    named = Mentions(("ben",), False).encode()
    for seq in (2, 4):
        rows[seq] = decode_message(rows[seq])._replace(extra=(0, named)).encode()
    await lists.actions.set_mute(lists.actor("ben"), "noise", True)


@BOTH
async def test_every_field_is_true(codec: Codec) -> None:
    """Trimmed, taken over, with entries to pull, unread, named, muted, on a second connection."""
    async with GatewayWorld(gateway_public_url=URL).running() as world:
        await unread_of_ben(world)
        ben = world.address("ben")
        for _ in range(6):
            await world.commit("ben")
        world.epochs.take_over()
        epoch = world.epochs.epoch
        await world.store.trim(ben.shard, epoch, TENANT, ben.ordinal, 1)
        cursor = world.signer.issue(ben, epoch, 2)
        async with await WireClient.connect(world.url, codec) as first:
            before = await first.sign_on("ben", cursor)
        async with await WireClient.connect(world.url, codec) as second:
            auth = await second.sign_on("ben", cursor)
            (session,) = world.registry.sessions()
            assert session.session_epoch > before.session_epoch
            rows = await world.store.read(ben.shard, TENANT, ben.ordinal, 2, 5, 100)
            assert auth == AuthOk(
                rid=auth.rid,
                user_id="ben",
                tenant_id=TENANT,
                device_id="phone",
                session_epoch=session.session_epoch,
                connection_id=str(session.connection_id),
                shard_epoch=epoch,
                lane_id=ben.lane,
                lane_watermark=5,
                trim_watermark=1,
                after_seq=2,
                sync_to_seq=5,
                has_offline=True,
                pending_entry_count_hint=3,
                pending_bytes_hint=sum(len(row.value) for row in rows),
                total_unread=8,
                total_mention=2,
                muted_unread=3,
                projection_complete=True,
                sync_delay_hint_ms=0,
                next_ping_interval_ms=world.settings.ping_interval_ms,
                preferred_endpoint=URL,
                push_token_dead=None,
            )


async def test_nothing_to_pull_is_said() -> None:
    """An empty cursor means from now on; a position at W has nothing behind it."""
    async with GatewayWorld().running() as world:
        for _ in range(3):
            await world.commit("ben")
        for cursor in (None, world.signer.issue(world.address("ben"), world.epochs.epoch, 2)):
            async with await WireClient.connect(world.url) as client:
                auth = await client.sign_on("ben", cursor)
                seen = auth.after_seq, auth.sync_to_seq, auth.has_offline, auth.pending_entry_count_hint
                assert seen == (2, 2, False, 0)
                assert (auth.pending_bytes_hint, auth.preferred_endpoint) == (0, None)
