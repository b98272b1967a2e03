"""History on a real stack of real processes: members who come and go, the archive, rebuilds under load."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.client import QimClient
from qim_streams.commit.keys import base, conversation
from qim_streams.errors import AdmissionRefused
from qim_streams.placement import outbox_partition
from qim_streams.redis_tier import connect
from qim_streams.settings import Settings
from qim_streams.wire.frames import HistoryBreak, HistoryPage, Message, PullHistory
from tests.integration.scenarios.conftest import Cast, Person
from tests.support.stack import StackProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, WireError, pull_range

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [message.conversation_seq for message in page.messages]


async def everything(client: QimClient, chat: str, limit: int = 7) -> list[Message]:
    """The whole conversation as a user reads it: forth and back, which must be the same."""
    forth = [
        m async for page in client.history.pages(chat, direction="newer", limit=limit) for m in page.messages
    ]
    back: list[Message] = []
    async for page in client.history.pages(chat, limit=limit + 2):
        back = page.messages + back
    assert forth == back
    return forth


async def say(client: QimClient, chat: str, count: int, word: str = "m") -> None:
    """Messages, one after the other."""
    for number in range(count):
        await client.send(f"{word}{number}".encode(), conversation_id=chat)


async def test_leave_rejoin_and_policy(cast: Cast) -> None:
    """A11, G1, G2: what a member who left and came back, a newcomer, and one who is gone may read."""
    ann, bob, cat, dan = cast.people("ann", "bob", "cat", "dan")
    group = cast.group()
    at_ann, at_bob = await ann.online(), await bob.online()
    at_cat, at_dan = await cat.online(), await dan.online()
    await at_ann.groups.create([bob.user_id, dan.user_id], conversation_id=group)
    await say(at_ann, group, 3)
    await at_bob.groups.leave(group)
    await at_dan.groups.leave(group)
    await say(at_ann, group, 2)
    await at_ann.groups.add(group, [bob.user_id, cat.user_id])
    await say(at_ann, group, 2)
    assert [m.conversation_seq for m in await everything(at_ann, group)] == list(range(1, 8))
    page = await at_bob.history(group, direction="newer")
    assert (seqs(page), page.breaks) == ([1, 2, 3, 6, 7], [HistoryBreak(4, 5, "not_member")])
    page = await at_cat.history(group, direction="newer")
    assert (seqs(page), page.breaks) == ([6, 7], [HistoryBreak(1, 5, "before_join")])
    page = await at_dan.history(group)
    assert (seqs(page), page.latest_seq, page.has_more) == ([1, 2, 3], 3, False)
    await at_ann.groups.update(group, history_policy="all")
    for client, last in ((at_bob, 7), (at_cat, 7), (at_dan, 3)):
        assert [m.conversation_seq for m in await everything(client, group)] == list(range(1, last + 1))
    with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
        await (await cast.person("eve").online()).history(group)


async def test_a_dismissed_group_can_still_be_read(cast: Cast) -> None:
    """Nobody can send any more; members and former members read on."""
    ann, bob = cast.people("ann", "bob")
    group = cast.group()
    at_ann, at_bob = await ann.online(), await bob.online()
    await at_ann.groups.create([bob.user_id], conversation_id=group)
    await say(at_ann, group, 2)
    await at_bob.groups.leave(group)
    await say(at_ann, group, 2)
    await at_ann.groups.dismiss(group)
    with pytest.raises(AdmissionRefused, match="DISMISSED"):
        await say(at_ann, group, 1)
    assert [m.conversation_seq for m in await everything(at_ann, group)] == [1, 2, 3, 4]
    assert [m.conversation_seq for m in await everything(at_bob, group)] == [1, 2]


async def test_what_was_pushed_is_what_history_shows(cast: Cast) -> None:
    """C13, A17: a direct chat: the same messages by push, in both users' history, and nothing for others."""
    ann, bob = cast.people("ann", "bob")
    at_ann, at_bob = await ann.online(), await bob.online()
    receipt = await at_ann.send(b"first", to_user_id=bob.user_id)
    chat = receipt.conversation_id
    for number in range(9):
        await (at_bob if number % 2 else at_ann).send(b"m%d" % number, conversation_id=chat)
    await eventually(lambda: len(bob.shown) >= 5, 30, "pushes to bob")
    told = await everything(at_bob, chat)
    assert [m.conversation_seq for m in told] == list(range(1, 11))
    assert told == await everything(at_ann, chat)
    by_push = {event.message.message_id: event.message for event in bob.shown if event.mailbox_seq >= 0}
    assert by_push
    assert all(message == by_push.get(message.message_id, message) for message in told)
    with pytest.raises(AdmissionRefused, match="NOT_MEMBER"):
        await (await cast.person("eve").online()).history(chat)


async def archived(stack: StackProcess, tenant: str, chat: str, seq: int) -> None:
    """Wait until the archive has the conversation up to `seq`."""
    reader = RocksArchiveReader(Path(stack.state_dir) / "archive")
    try:
        await eventually(lambda: reaches(reader, tenant, chat, seq), 30, "the archive")
    finally:
        await reader.close()


async def reaches(reader: RocksArchiveReader, tenant: str, chat: str, seq: int) -> bool:
    """Whether the archive has come so far."""
    return await reader.latest(tenant, chat) >= seq


async def forget(stack: StackProcess, tenant: str, chat: str, last: int) -> None:
    """Trim the hot tier up to `last`, as its owner may once that is archived."""
    redis = connect(Settings(redis_url=SecretStr(stack.client["redis_url"])))
    try:
        partition = outbox_partition(tenant, chat, Settings().outbox_partitions)
        key = f"{base(partition)}r:{conversation(tenant, chat)}"
        assert await redis.hdel(key, *(str(seq) for seq in range(1, last + 1))) == last
    finally:
        await redis.aclose()


async def test_what_left_the_hot_tier_comes_from_the_archive(cast: Cast) -> None:
    """P11, E11: the gateway reads what another process archived; the page over the boundary is one page."""
    ann, bob = cast.people("ann", "bob")
    group = cast.group()
    at_ann, at_bob = await ann.online(), await bob.online()
    await at_ann.groups.create([bob.user_id], conversation_id=group)
    await say(at_ann, group, 30)
    before = await everything(at_bob, group)
    tenant = cast.stack.address().require_tenant()
    await archived(cast.stack, tenant, group, 30)
    await forget(cast.stack, tenant, group, 20)
    assert await everything(at_bob, group) == before
    assert seqs(await at_bob.history(group, anchor=26, limit=10)) == list(range(16, 26))
    await say(at_ann, group, 2)
    assert [m.conversation_seq for m in await everything(at_bob, group)] == list(range(1, 33))


@dataclass
class Device:
    """A device that rebuilt itself: what history told it, and where its mailbox goes on."""

    wire: WireClient
    sync_to_seq: int
    told: list[Message]

    async def lacks(self, sent: Sequence[bytes]) -> set[bytes]:
        """Messages that neither history had nor the mailbox has above sync_to_seq."""
        watermark = (await self.wire.pull(self.sync_to_seq, self.sync_to_seq)).lane_watermark
        pulled = await pull_range(self.wire, self.sync_to_seq, watermark)
        assert not pulled.problems
        return set(sent) - ids(self.told) - ids(event.message for event in pulled.events)


async def rebuilt(person: Person, chat: str, rng: random.Random) -> Device:
    """A device with an empty cursor comes online, then reads history to its end (§8, steps 0 and 3)."""
    wire = await person.wire(f"new-{rng.randrange(10**9)}").__aenter__()
    auth = await wire.auth()
    await wire.sync_complete(auth.sync_to_seq)
    return Device(wire, auth.sync_to_seq, await read_to_the_end(wire, chat, rng))


async def read_to_the_end(wire: WireClient, chat: str, rng: random.Random) -> list[Message]:
    """PULL_HISTORY newer from the beginning until has_more is false; what is not settled is waited out."""
    found: list[Message] = []
    anchor, more = 0, True
    while more:
        frame = PullHistory(wire.next_rid(), chat, "newer", anchor, rng.randint(20, 200))
        try:
            page = await wire.request(frame, HistoryPage)
        except WireError as refused:  # not now, on a busy machine
            if refused.frame is None or not refused.frame.temporary:
                raise
            await asyncio.sleep((refused.frame.retry_after_ms or 0) / 1_000)
            continue
        assert page.next_anchor > anchor or not page.has_more
        found += page.messages
        anchor, more = page.next_anchor, page.has_more
    return found


async def test_a_rebuild_under_traffic_misses_nothing(cast: Cast) -> None:
    """A16, REBUILD: history to its end, and the mailbox above sync_to_seq, are everything, each time."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    ann, bob = cast.people("ann", "bob")
    group = cast.group()
    at_ann = await ann.online(per_conversation_inflight=8)
    await at_ann.groups.create([bob.user_id], conversation_id=group)
    stop = asyncio.Event()
    sent: list[bytes] = []

    async def talk() -> None:
        while not stop.is_set():
            burst = [at_ann.send(b"x", conversation_id=group) for _ in range(rng.randint(1, 8))]
            sent.extend(one.message_id for one in await asyncio.gather(*burst))
            await asyncio.sleep(rng.random() * 0.02)

    talking = cast.background(talk())
    devices: list[Device] = []
    try:
        for _ in range(6):
            await asyncio.sleep(rng.random() * 0.3)
            devices.append(await rebuilt(bob, group, rng))
        stop.set()
        await talking
        for device in devices:

            async def has_all(at: Device = device) -> bool:
                return not await at.lacks(sent)

            await eventually(has_all, 30, "history and mailbox to cover everything")
            assert [m.conversation_seq for m in device.told] == list(range(1, len(device.told) + 1))
            assert ids(device.told) <= set(sent)
    finally:
        for device in devices:
            await device.wire.drop()


def ids(messages: Iterable[Message]) -> set[bytes]:
    """The ids of messages."""
    return {message.message_id for message in messages}
