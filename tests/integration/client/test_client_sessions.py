"""`client.sessions` and `qim sessions` against a real gateway on stores in memory. Spec: §9."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner, Result

from qim_streams.cli import main
from qim_streams.client import ClientOptions, QimClient
from qim_streams.client.badge_book import Badge
from qim_streams.client.sessions import ListedConversations
from qim_streams.errors import AdmissionRefused
from tests.support.gateway_world import TENANT, GatewayWorld, token
from tests.support.waiting import eventually

EVER = ((0, None),)
QUICK = ClientOptions(backoff_base_ms=10, backoff_cap_ms=50, follow_endpoint=False)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    """Ann has five groups; in `g0` to `g4` ben has said 0 to 4 messages."""
    async with GatewayWorld().running() as running:
        lists = running.session_world
        for name in ("ann", "ben"):
            lists.user(name, running.address(name).ordinal)
        for number in range(5):
            chat = f"g{number}"
            running.past.group({"ann": EVER, "ben": EVER}, chat=chat)
            await lists.saw("ann", chat, number + 1)
            lists.say(chat, "ben", number, body=b"hello")
        yield running


async def client_of(world: GatewayWorld, device: str) -> QimClient:
    client = QimClient(world.url, token("ann"), device, options=QUICK)
    await client.connect(10)
    return client


async def test_the_book_follows_both_devices(world: GatewayWorld) -> None:
    """Pages, own changes and deltas meet in the book; a refusal raises."""
    phone, laptop = await client_of(world, "phone"), await client_of(world, "laptop")
    try:
        assert [row.conversation_id for row in await laptop.sessions.load()] == ["g4", "g3", "g2", "g1", "g0"]
        assert laptop.sessions.book.total_unread == 10
        changes: list[int] = []
        laptop.sessions.on_change = lambda: changes.append(laptop.sessions.book.total_unread)
        assert (await phone.sessions.mark_read("g4", 3)).unread == 1
        await eventually(lambda: changes[-1:] == [7], what="the delta of a mark")
        assert (await phone.sessions.set_mute("g3")).muted
        await eventually(lambda: laptop.sessions.book.muted_unread == 3, what="the delta of a mute")
        assert (await phone.sessions.clear("g2", hidden=True)).hidden
        await eventually(lambda: laptop.sessions.book.total_unread == 5, what="the delta of a delete")
        assert [row.conversation_id for row in await phone.sessions.load()] == ["g4", "g3", "g1", "g0"]
        found = await ListedConversations(phone.session, phone.requests).conversations()
        assert (found.ids, found.complete) == (frozenset(f"g{number}" for number in range(5)), True)
        with pytest.raises(AdmissionRefused, match="NO_CONVERSATION"):
            await phone.sessions.set_pin("nowhere")
        assert laptop.sessions.book.dropped == 0
    finally:
        await phone.close()
        await laptop.close()


async def test_the_badge_follows_reads_messages_and_recalls(world: GatewayWorld) -> None:
    """Another device reads or mutes: it is told. A message or a recall comes: it is asked for again, once."""
    lists = world.session_world
    phone, laptop = await client_of(world, "phone"), await client_of(world, "laptop")
    try:
        await world.ready("ann")
        assert laptop.sessions.badge.value == Badge(10, 0, 0, True)
        seen: list[int] = []
        laptop.sessions.badge.on_change = lambda badge: seen.append(badge.unread)
        await phone.sessions.mark_read("g4", 4)
        await eventually(lambda: seen[-1:] == [6], what="the badge after a mark")
        await phone.sessions.set_mute("g3")
        await eventually(lambda: seen[-1:] == [3], what="the badge after a mute")
        assert phone.sessions.badge.value == Badge(3, 0, 3, True)
        lists.say("g0", "ben", 2)
        await world.deliver("ann")
        await eventually(lambda: seen[-1:] == [5], what="the badge after messages")
        lists.recall("g0", 1, "ben")
        await world.deliver("ann")
        await eventually(lambda: seen[-1:] == [4], what="the badge after a recall")
        assert await phone.sessions.badge.refresh() == Badge(4, 0, 3, True)
    finally:
        await phone.close()
        await laptop.close()


async def qim(world: GatewayWorld, *args: str) -> Result:
    """`qim sessions ...` of ann, in a process's main thread as far as asyncio is concerned."""
    env = {
        "QIM_GATEWAY_URL": world.url,
        "QIM_TENANT": TENANT,
        "QIM_TOKEN": token("ann"),
        "QIM_STATE_DIR": None,
    }
    return await asyncio.to_thread(CliRunner().invoke, main, ["sessions", *args, "--user", "ann"], env=env)


async def test_the_command(world: GatewayWorld) -> None:
    """The list in columns and as JSON, page by page, and every change of it; refusals in one line."""
    shown = await qim(world, "list", "--limit", "2")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["conversation", "g4", "g3"]
    assert lines[3] == "-- more: --cursor 4.g3"
    rest = json.loads((await qim(world, "list", "--cursor", "4.g3", "--json")).output)
    assert [(row["conversation_id"], row["unread"]) for row in rest["rows"]] == [
        ("g2", 2),
        ("g1", 1),
        ("g0", 0),
    ]
    for args, field, value in (
        (("read", "g4", "2"), "read_seq", 2),
        (("mute", "g4"), "muted", True),
        (("mute", "g4", "--off"), "muted", False),
        (("hide", "g3"), "hidden", True),
        (("hide", "g3", "--off"), "hidden", False),
        (("delete", "g4", "4"), "unread", 1),
        (("clear", "g4", "--up-to", "3"), "deleted_to_seq", 3),
    ):
        made = await qim(world, *args)
        assert made.exit_code == 0, made.output
        assert json.loads(made.output)[field] == value, args
    assert json.loads((await qim(world, "pin", "g0")).output)["pinned_at"] > 0
    first = (await qim(world, "list", "--pinned-first", "--limit", "1")).output.splitlines()
    assert (first[1].split()[0], "pinned" in first[1]) == ("g0", True)
    assert len((await qim(world, "list", "--only", "unread")).output.splitlines()) == 4
    refused = await qim(world, "read", "nowhere", "1")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1), refused.output
    assert "NO_CONVERSATION" in refused.output
