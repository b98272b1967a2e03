"""PULL_HISTORY on real sockets, in both encodings: pages, breaks, refusals, windows, faults (T-X3, T-X5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from qim_streams import limits
from qim_streams.wire import CODECS, MSGPACK, Codec
from qim_streams.wire.frames import Error, HistoryBreak, HistoryPage, Ping, Pong, PullHistory
from tests.integration.gateway.conftest import event_loop_policy
from tests.support.gateway_world import GatewayWorld, WireClient
from tests.support.history_world import CHAT, message_id

__all__ = ["event_loop_policy"]  # both event loops, as the gateway's other tests
BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)
EVER = ((0, None),)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        running.past.group({"ann": EVER, "bob": ((0, 10), (20, None)), "cat": ((0, 5),)})
        running.past.say(30, b"hello")
        await running.past.archive_up_to(30)
        running.past.trim(*range(1, 16))
        yield running


async def page_of(client: WireClient, direction: str, anchor: int | None, limit: int = 100) -> HistoryPage:
    """A page of the team."""
    answer = await client.call(PullHistory(client.next_rid(), CHAT, direction, anchor, limit))
    assert type(answer) is HistoryPage, answer
    assert answer.rid == client.rid
    return answer


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [message.conversation_seq for message in page.messages]


@BOTH
async def test_pages_both_ways(world: GatewayWorld, codec: Codec) -> None:
    """E10, E11: the newest without an anchor, then back; forth from the beginning; over the trim boundary."""
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        newest = await page_of(ann, "older", None, 10)
        assert (seqs(newest), newest.has_more, newest.next_anchor) == (list(range(21, 31)), True, 21)
        before = await page_of(ann, "older", newest.next_anchor, 20)
        assert (seqs(before), before.has_more) == (list(range(1, 21)), False)
        forth = await page_of(ann, "newer", None, 30)
        assert forth.messages == before.messages + newest.messages
        assert (forth.breaks, forth.has_more, forth.latest_seq, forth.oldest_visible_seq) == (
            [],
            False,
            30,
            1,
        )
        message = forth.messages[15]
        assert (message.message_id, message.conversation_id, message.sender_id) == (
            message_id(16),
            CHAT,
            "sam",
        )
        assert (message.body, message.state, message.committed_at) == (b"hello", 0, 77)


@BOTH
async def test_breaks_are_told(world: GatewayWorld, codec: Codec) -> None:
    """A11: bob left at 10 and came back at 20. Newer from 5: no 11-20, and the break says why."""
    async with await WireClient.connect(world.url, codec) as bob:
        await bob.sign_on("bob")
        page = await page_of(bob, "newer", 5)
        assert seqs(page) == [6, 7, 8, 9, 10, *range(21, 31)]
        assert page.breaks == [HistoryBreak(11, 20, "not_member")]
        assert (page.has_more, page.next_anchor) == (False, 30)
        cut = await page_of(bob, "older", 23, 3)
        assert (seqs(cut), cut.breaks, cut.next_anchor) == (
            [10, 21, 22],
            [HistoryBreak(11, 20, "not_member")],
            10,
        )
        world.past.skip(2)
        world.past.say()
        tail = await page_of(bob, "newer", 29)
        assert (seqs(tail), tail.breaks) == ([30, 33], [HistoryBreak(31, 32, "unused")])


async def test_who_left_reads_his_part(world: GatewayWorld) -> None:
    """cat left at 5: five messages, no word of what came later; a stranger and another tenant get nothing."""
    async with await WireClient.connect(world.url) as cat:
        await cat.sign_on("cat")
        page = await page_of(cat, "newer", None)
        assert (seqs(page), page.has_more, page.latest_seq) == ([1, 2, 3, 4, 5], False, 5)
        assert (await page_of(cat, "newer", 29)).messages == []


@BOTH
async def test_every_refusal_has_its_code(world: GatewayWorld, codec: Codec) -> None:
    """Unknown conversation, stranger, bad fields one by one: request, code and field are named."""

    async def refused(client: WireClient, **changes: Any) -> Error:
        raw: dict[str, Any] = {"t": "PULL_HISTORY", "rid": 7, "conversation_id": CHAT, "limit": 5}
        raw |= {"direction": "newer", "anchor": 0}
        for name, value in changes.items():
            if value is None:
                del raw[name]
            else:
                raw[name] = value
        await client.send_raw(msgpack.packb(raw) if codec.binary else json.dumps(raw).encode())
        answer = await client.expect(Error)
        assert isinstance(answer, Error)
        assert (answer.rid, answer.temporary) == (7, False)
        return answer

    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        for field, value in (
            ("anchor", -1),
            ("anchor", 2**53),
            ("anchor", "1"),
            ("limit", 0),
            ("limit", limits.HISTORY_MESSAGES_MAX + 1),
            ("limit", True),
            ("limit_bytes", 0),
            ("limit_bytes", limits.HISTORY_BYTES_MAX + 1),
            ("direction", "sideways"),
            ("direction", None),
            ("conversation_id", "a b"),
            ("conversation_id", "a:b"),
            ("conversation_id", "a\0b"),
            ("conversation_id", ""),
            ("conversation_id", None),
        ):
            answer = await refused(ann, **{field: value})
            assert (answer.name, answer.field) == ("FIELD_INVALID", field), (field, value)
        assert (await refused(ann, conversation_id="nowhere")).name == "NO_CONVERSATION"
        world.past.group({"ann": EVER}, chat="secret", tenant="other")
        assert (await refused(ann, conversation_id="secret")).name == "NO_CONVERSATION"
        assert type(await ann.call(Ping(1))) is Pong, "the connection goes on"
    async with await WireClient.connect(world.url, codec) as eve:
        await eve.sign_on("eve")
        assert (await refused(eve)).name == "NOT_MEMBER"


async def test_before_auth_there_is_nothing_to_read(world: GatewayWorld) -> None:
    """T-X3: the frame before AUTH_OK ends the connection."""
    async with await WireClient.connect(world.url) as nobody:
        answer = await nobody.call(PullHistory(1, CHAT, "newer"))
        assert (answer.name, answer.rid) == ("NOT_AUTHENTICATED", 1)
        assert await nobody.closed() == 4200


async def test_before_online_ready_history_is_legal(world: GatewayWorld) -> None:
    """A device that rebuilds may begin at once; nothing of it moves a cursor (C14)."""
    async with await WireClient.connect(world.url) as ann:
        auth = await ann.sign_on("ann")
        await page_of(ann, "newer", None)
        ready = await ann.go_online()
        cursor = world.signer.open(ready.cursor, world.address("ann"))
        assert cursor is not None
        assert cursor.last_applied == auth.sync_to_seq


class Gate:
    """Holds the reads of the archive until it is opened."""

    def __init__(self, world: GatewayWorld) -> None:
        self.opened, self.waiting = asyncio.Event(), 0
        self._range = world.past.archive.range
        world.past.archive.range = self.range  # type: ignore[method-assign]

    async def range(self, *args: Any, **options: Any) -> Any:
        self.waiting += 1
        await self.opened.wait()
        return await self._range(*args, **options)


async def test_the_window_and_who_it_does_not_hold_up(world: GatewayWorld) -> None:
    """Four pages wait for a slow archive; the fifth is refused for now; other requests are answered."""
    gate = Gate(world)
    async with await WireClient.connect(world.url) as ann, await WireClient.connect(world.url) as bob:
        await ann.sign_on("ann")
        await bob.sign_on("bob")
        for rid in range(101, 101 + limits.HISTORY_WINDOW):
            await ann.send(PullHistory(rid, CHAT, "newer", 0, 3))
        answer = await ann.call(PullHistory(200, CHAT, "newer", 0, 3))
        assert (answer.name, answer.rid, answer.temporary) == ("TOO_MANY_IN_FLIGHT", 200, True)
        assert answer.retry_after_ms
        assert type(await ann.call(Ping(1))) is Pong
        assert seqs(await page_of(bob, "newer", 25)) == [26, 27, 28, 29, 30], "the hot tier is not slow"
        gate.opened.set()
        pages = [await ann.expect(HistoryPage) for _ in range(limits.HISTORY_WINDOW)]
        assert sorted(page.rid for page in pages) == [101, 102, 103, 104]
        assert {tuple(seqs(page)) for page in pages} == {(1, 2, 3)}
        assert gate.waiting == 2, "they share their reads"
        assert seqs(await page_of(ann, "newer", 0, 3)) == [1, 2, 3]


async def test_a_client_that_leaves_takes_nothing_with_it(world: GatewayWorld) -> None:
    """The socket closes while its pages are being read; another reader of the same pages has his answer."""
    gate = Gate(world)
    ann, bob = await WireClient.connect(world.url), await WireClient.connect(world.url)
    await ann.sign_on("ann")
    await bob.sign_on("bob")
    await ann.send(PullHistory(1, CHAT, "newer", 0, 3))
    await ann.call(Ping(1))
    await bob.send(PullHistory(2, CHAT, "newer", 0, 3))
    await bob.call(Ping(1))
    await ann.close()
    gate.opened.set()
    assert seqs(await bob.expect(HistoryPage)) == [1, 2, 3]
    await bob.close()


@BOTH
async def test_lost_tiers_are_temporary_errors(world: GatewayWorld, codec: Codec) -> None:
    """Neither an empty page nor the end of the connection; what can be read is read."""
    async with await WireClient.connect(world.url, codec) as ann:
        await ann.sign_on("ann")
        world.past.archive.unavailable = True
        answer = await ann.call(PullHistory(1, CHAT, "older", 20, 10))
        assert (answer.name, answer.temporary, answer.rid) == ("STORE_UNAVAILABLE", True, 1)
        assert seqs(await page_of(ann, "older", None, 5)) == [26, 27, 28, 29, 30]
        world.past.store.unavailable = True
        answer = await ann.call(PullHistory(2, CHAT, "older", None, 10))
        assert (answer.name, answer.temporary, answer.rid) == ("STORE_UNAVAILABLE", True, 2)
        world.past.archive.unavailable = world.past.store.unavailable = False
        assert len((await page_of(ann, "older", None)).messages) == 30


async def test_what_is_not_settled_says_so(world: GatewayWorld) -> None:
    """A writer that is away: a temporary error with a delay, and then the message."""
    async with await WireClient.connect(world.url) as ann:
        await ann.sign_on("ann")
        last = world.past.say(pending=True)
        answer = await ann.call(PullHistory(1, CHAT, "newer", 30))
        assert (answer.name, answer.temporary, answer.retry_after_ms) == ("HISTORY_UNSETTLED", True, 200)
        page = await page_of(ann, "newer", 29)
        assert (seqs(page), page.has_more) == ([30], True)
        world.past.confirm(last)
        assert seqs(await page_of(ann, "newer", 30)) == [31]


async def test_the_largest_page_fits_a_frame(world: GatewayWorld) -> None:
    """Five hundred messages, or few large ones: both stay below what a client must be able to receive."""
    world.past.say(600, b"s" * 100)
    world.past.say(10, b"l" * 60_000)
    for codec in CODECS.values():
        async with await WireClient.connect(world.url, codec) as ann:
            await ann.sign_on("ann")
            for anchor, count in ((629, 500), (None, 3)):
                frame = PullHistory(1, CHAT, "older", anchor, limits.HISTORY_MESSAGES_MAX)
                answer = await ann.call(frame)
                assert len(answer.messages) == count
                assert len(MSGPACK.encode(answer)) < limits.SERVER_FRAME_BYTES_MAX // 2
