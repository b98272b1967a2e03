"""Edits and recalls on a real stack of real processes: live, away, archived only, repeated, replayed.

Spec: §8. Scenarios C13, C14, G1; P11.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.client import Delivery, MemoryStore, MessageEdited, MessageRecalled, QimClient
from qim_streams.commit.keys import base, conversation
from qim_streams.errors import AdmissionRefused
from qim_streams.placement import outbox_partition
from qim_streams.records import KIND_EDIT, KIND_MESSAGE, KIND_RECALL, decode_message
from qim_streams.redis_tier import connect
from qim_streams.settings import Settings
from qim_streams.wire.frames import Message
from tests.integration.history.test_history_stack import archived, everything, forget, say
from tests.integration.scenarios.conftest import QUICK, Cast, Person
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
BOTH = pytest.mark.parametrize("encoding", ["msgpack", "json"])


class Screen(list[Delivery]):
    """What an application was given; `changes` are the edits and recalls of it."""

    @property
    def changes(self) -> list[tuple[type, int]]:
        return [
            (type(one), one.conversation_seq)
            for one in self
            if isinstance(one, MessageEdited | MessageRecalled)
        ]


async def device(person: Person, name: str, store: MemoryStore, screen: Screen, **options: Any) -> QimClient:
    """A connected device with a store of its own."""
    address, values = person.cast.stack.address(), {n: getattr(QUICK, n) for n in QUICK.__dataclass_fields__}
    client = QimClient(
        address.require_url(),
        address.token(person.user_id),
        name,
        options=type(QUICK)(**{**values, **options}),
        store=store,
        on_deliveries=screen.extend,
    )
    person.cast.clients.append(client)
    await client.connect(60)
    return client


def kept(store: MemoryStore, chat: str) -> list[tuple[int, int, int, bytes]]:
    """Seq, kind, state and body of what a store has."""
    rows = [event.message for event in store.messages(chat, 100)]
    return [(one.conversation_seq, one.kind, one.state, one.body) for one in rows]


def of(messages: Sequence[Message]) -> list[tuple[int, int, int, bytes]]:
    """The same of messages of history."""
    return [(one.conversation_seq, one.kind, one.state, one.body) for one in messages]


@BOTH
async def test_live_by_pull_and_by_history_all_end_the_same(cast: Cast, encoding: str) -> None:
    """C13, C14: ben is online on one device and away on another; cat reads history; nothing is unread."""
    ann, ben, cat = cast.people("ann", "ben", "cat")
    group, stores = cast.group(), [MemoryStore() for _ in range(4)]
    screens = [Screen() for _ in range(4)]
    at_ann = await device(ann, "phone", stores[0], screens[0], encoding=encoding)
    ann_too = await device(ann, "tablet", stores[1], screens[1], encoding=encoding)
    await device(ben, "phone", stores[2], screens[2], encoding=encoding)
    away = await device(ben, "tablet", stores[3], Screen(), encoding=encoding)
    await at_ann.groups.create([ben.user_id, cat.user_id], conversation_id=group)
    await say(at_ann, group, 3)
    await eventually(lambda: len(kept(stores[3], group)) == 3, 30, "three messages")
    await away.checkpoint()
    await away.close()
    first = await at_ann.edit(group, 1, b"edited")
    assert (first.conversation_id, first.conversation_seq) == (group, 4)
    await at_ann.recall(group, 2)
    await at_ann.edit(group, 1, b"edited again")
    await at_ann.send(b"last", conversation_id=group)
    expected = [
        (1, KIND_MESSAGE, 1, b"edited again"),
        (2, KIND_MESSAGE, 2, b""),
        (3, KIND_MESSAGE, 0, b"m2"),
        (4, KIND_EDIT, 1, b"edited again"),
        (5, KIND_RECALL, 2, b""),
        (6, KIND_EDIT, 1, b"edited again"),
        (7, KIND_MESSAGE, 0, b"last"),
    ]
    changes = [(MessageEdited, 1), (MessageRecalled, 2), (MessageEdited, 1)]
    for store, screen in zip(stores[:3], screens[:3], strict=True):
        await eventually(lambda store=store: len(kept(store, group)) == 7, 30, "everything")  # type: ignore[misc]
        found = kept(store, group)
        assert found[:3] + found[4:5] + found[6:] == expected[:3] + expected[4:5] + expected[6:]
        assert screen.changes == changes
    back = await device(ben, "tablet", stores[3], screens[3], encoding=encoding)
    await eventually(lambda: kept(stores[3], group) == expected, 30, "the device that was away")
    assert screens[3].changes == changes
    flags = {event.message.kind: event.flags for event in stores[3].messages(group, 100)}
    assert flags == {KIND_MESSAGE: 3, KIND_EDIT: 0, KIND_RECALL: 0}
    at_cat = await cat.online(encoding=encoding)
    for client in (at_cat, back, ann_too):
        assert of(await everything(client, group)) == expected
    targets = [message.target_seq for message in await everything(at_cat, group)]
    assert targets == [None, None, None, 1, 2, 1, None]


async def test_who_may_not_and_repeats(cast: Cast) -> None:
    """C1, G1: refusals are final and change nothing; a repeat has the same receipt and no second effect."""
    ann, ben, eve = cast.people("ann", "ben", "eve")
    group = cast.group()
    at_ann, at_ben, at_eve = await ann.online(), await ben.online(), await eve.online()
    await at_ann.groups.create([ben.user_id], conversation_id=group)
    await say(at_ann, group, 1)
    await say(at_ben, group, 1)
    for asked, code in (
        (at_ben.edit(group, 1, b"x"), "NOT_ALLOWED"),
        (at_ben.recall(group, 1), "NOT_ALLOWED"),
        (at_ann.edit(group, 2, b"x"), "NOT_ALLOWED"),
        (at_eve.edit(group, 1, b"x"), "NOT_MEMBER"),
        (at_ann.edit(group, 99, b"x"), "TARGET_NOT_FOUND"),
    ):
        with pytest.raises(AdmissionRefused, match=code):
            await asked
    assert of(await everything(at_ben, group)) == [(1, 0, 0, b"m0"), (2, 0, 0, b"m0")]
    once = await at_ann.recall(group, 2, client_message_id="r-1")
    assert await at_ann.recall(group, 2, client_message_id="r-1") == once
    with pytest.raises(AdmissionRefused, match="TARGET_RECALLED"):
        await at_ben.edit(group, 2, b"x")
    with pytest.raises(AdmissionRefused, match="TARGET_NOT_A_MESSAGE"):
        await at_ann.recall(group, once.conversation_seq)
    with pytest.raises(AdmissionRefused, match="CLIENT_MESSAGE_ID_CONFLICT"):
        await at_ann.recall(group, 1, client_message_id="r-1")
    assert of(await everything(at_ben, group)) == [(1, 0, 0, b"m0"), (2, 0, 2, b""), (3, 2, 2, b"")]


async def test_what_only_the_archive_has(cast: Cast) -> None:
    """P11: edited out of the archive, archived again, trimmed again, recalled; the same for every reader."""
    ann, ben = cast.people("ann", "ben")
    group, tenant = cast.group(), cast.stack.address().require_tenant()
    at_ann, at_ben = await ann.online(), await ben.online()
    await at_ann.groups.create([ben.user_id], conversation_id=group)
    await say(at_ann, group, 20)
    await archived(cast.stack, tenant, group, 20)
    await forget(cast.stack, tenant, group, 20)
    receipt = await at_ann.edit(group, 7, b"seven")
    assert receipt.conversation_seq == 21
    assert of(await everything(at_ben, group))[6] == (7, 0, 1, b"seven")
    await archived(cast.stack, tenant, group, 21)
    await eventually(lambda: state_in_archive(cast, tenant, group, 7, 1), 30, "the archived revision")
    await asyncio.sleep(0.3)  # readers of the archive in other processes may be 200 ms behind
    await trim(cast, tenant, group, 7, 21)
    found = of(await everything(at_ben, group))
    assert (found[6], found[20]) == ((7, 0, 1, b"seven"), (21, KIND_EDIT, 1, b"seven"))
    await at_ann.recall(group, 7)
    found = of(await everything(at_ben, group))
    assert (found[6], found[20], found[21]) == (
        (7, 0, 2, b""),
        (21, KIND_EDIT, 2, b""),
        (22, KIND_RECALL, 2, b""),
    )
    assert len(found) == 22


async def test_a_killed_writer_and_a_killed_archiver_change_nothing_of_it(cast: Cast) -> None:
    """The next owner of the partition edits on top of what the last one did; the archiver replays."""
    ann, ben = cast.people("ann", "ben")
    group, tenant = cast.group(), cast.stack.address().require_tenant()
    at_ann, at_ben = await ann.online(), await ben.online()
    await at_ann.groups.create([ben.user_id], conversation_id=group)
    await say(at_ann, group, 2)
    await at_ann.edit(group, 1, b"one")
    for role in ("writer", "archiver"):
        pid = cast.stack.kill(role)
        await asyncio.to_thread(cast.stack.wait_restarted, role, pid)
    await at_ann.edit(group, 1, b"two", timeout_s=60)
    await at_ann.recall(group, 2, timeout_s=60)
    expected = [(1, 0, 1, b"two"), (2, 0, 2, b""), (3, 1, 1, b"two"), (4, 1, 1, b"two"), (5, 2, 2, b"")]
    assert of(await everything(at_ben, group)) == expected
    await archived(cast.stack, tenant, group, 5)
    await eventually(lambda: state_in_archive(cast, tenant, group, 2, 2), 30, "the archived recall")
    await eventually(lambda: state_in_archive(cast, tenant, group, 1, 1), 30, "the archived edit")
    await forget(cast.stack, tenant, group, 5)
    await eventually(lambda: reads(at_ben, group, expected), 10, "the same from the archive")


async def reads(client: QimClient, group: str, expected: list[tuple[int, int, int, bytes]]) -> bool:
    """Whether a user reads this; a reader of the archive may be a moment behind what was removed by hand."""
    return of(await everything(client, group)) == expected


async def trim(cast: Cast, tenant: str, chat: str, *seqs: int) -> None:
    """Remove single messages from the hot tier."""
    redis = connect(Settings(redis_url=SecretStr(cast.stack.client["redis_url"])))
    try:
        partition = outbox_partition(tenant, chat, Settings().outbox_partitions)
        await redis.hdel(f"{base(partition)}r:{conversation(tenant, chat)}", *map(str, seqs))
    finally:
        await redis.aclose()


async def state_in_archive(cast: Cast, tenant: str, chat: str, seq: int, state: int) -> bool:
    """Whether the archive has a message in a state."""
    reader = RocksArchiveReader(Path(cast.stack.state_dir) / "archive")
    try:
        (row,) = await reader.records([(tenant, chat, seq)])
    finally:
        await reader.close()
    return row is not None and decode_message(row).state == state
