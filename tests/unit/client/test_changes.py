"""Edits and recalls in SDK and terminal, against a scripted server: live, lost, rebuilt (C1 C13 C14)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from scripted_server import ScriptedServer
from test_client_commands import data_home, qim
from test_client_commands import server as threaded
from test_qim_client import BOTH, ROOM, Screen, client_of
from test_rebuild import been_here, trim_all

from qim_streams.client import (
    LocalStore,
    MemoryStore,
    MessageEdited,
    MessageRecalled,
    MessageSent,
    QimClient,
    RebuildFinished,
)
from qim_streams.errors import AdmissionRefused, ConfigError
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from tests.support.waiting import eventually

__all__ = ["data_home", "threaded"]
EDIT, RECALL = 1, 2


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    one = ScriptedServer()
    one.members[ROOM] = BOTH
    await one.start()
    yield one
    await one.stop()


def changes(screen: Screen) -> list[tuple[str, int]]:
    """What was told of edits and recalls."""
    kinds = (MessageEdited, MessageRecalled)
    return [(type(one).__name__, one.conversation_seq) for one in screen.all if isinstance(one, kinds)]


def kept(store: LocalStore) -> list[tuple[int, int, bytes]]:
    """Seq, state and body of the messages that a store has, without operations."""
    rows = [event.message for event in store.messages(ROOM, 100) if not event.message.kind]
    return [(one.conversation_seq, one.state, one.body) for one in rows]


async def push_change(server: ScriptedServer, kind: int, target: int, body: bytes = b"") -> None:
    server.store(ROOM, "bob", body, BOTH, change=(kind, target))
    await server._push_last(BOTH, None)


@pytest.mark.parametrize("echo_own", [True, False])
async def test_own_changes_are_sent_like_messages(server: ScriptedServer, echo_own: bool) -> None:
    """Kept first, repeated under one id when the ack is lost, a receipt of their own."""
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", screen, store=store, echo_own=echo_own, answer_ms=100) as ann:
        sent = await ann.send(b"helo", conversation_id=ROOM)
        server.faults.drop_acks = 1
        receipt = await ann.edit(ROOM, sent.conversation_seq, b"hello", client_message_id="e-1")
        assert receipt.conversation_seq == 2
        again = await ann.edit(ROOM, sent.conversation_seq, b"hello", client_message_id="e-1")
        assert again == receipt
        assert (await ann.recall(ROOM, sent.conversation_seq)).conversation_seq == 3
    assert [type(one) for one in server.received if isinstance(one, EditMessage | RecallMessage)] == [
        EditMessage, EditMessage, EditMessage, RecallMessage,
    ]  # fmt: skip
    assert screen.count(MessageSent) == 4
    if echo_own:
        assert changes(screen) == [("MessageEdited", 1), ("MessageRecalled", 1)]
        assert kept(store) == [(1, 2, b"")]


async def test_refusals_come_as_they_are(server: ScriptedServer) -> None:
    async with client_of(server, "ann") as ann:
        server.faults.refuse_sends = [("CHANGE_TOO_LATE", None)]
        with pytest.raises(AdmissionRefused, match="CHANGE_TOO_LATE"):
            await ann.edit(ROOM, 1, b"x")
        server.faults.refuse_sends = [("TARGET_UNSETTLED", 10)]
        server.store(ROOM, "ann", b"m", BOTH)
        assert (await ann.recall(ROOM, 1)).conversation_seq == 2, "not now is repeated"
        for wrong in (0, -1, 2**53):
            with pytest.raises(ConfigError, match="conversation_seq"):
                await ann.edit(ROOM, wrong, b"x")


async def test_out_of_order_and_repeated_pushes_are_told_once_each(server: ScriptedServer) -> None:
    """C13: the edit overtakes its message; both come twice."""
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", screen, store=store):
        await server.publish(ROOM, "bob", b"one", BOTH)
        await eventually(lambda: screen.bodies == [b"one"])
        server.faults.reverse_pushes, server.faults.repeat_pushes = True, 2
        server.store(ROOM, "bob", b"two", BOTH)
        await push_change(server, EDIT, 2, b"two, edited")
        await push_change(server, RECALL, 1)
        await eventually(lambda: len(changes(screen)) == 2)
    assert changes(screen) == [("MessageEdited", 2), ("MessageRecalled", 1)]
    assert kept(store) == [(1, 2, b""), (2, 1, b"two, edited")]


async def test_a_lost_push_is_made_up_by_a_pull(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    async with client_of(server, "ann", screen, store=store):
        await server.publish(ROOM, "bob", b"one", BOTH)
        server.faults.drop_pushes = 1
        await push_change(server, RECALL, 1)
        await server.publish(ROOM, "bob", b"two", BOTH)
        await eventually(lambda: screen.bodies == [b"one", b"two"])
    assert changes(screen) == [("MessageRecalled", 1)]
    assert kept(store) == [(1, 2, b""), (3, 0, b"two")]


async def test_a_rebuild_converges_through_history(server: ScriptedServer) -> None:
    """§8: operations that only history has change what was kept before; new messages come as they are."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    server.store(ROOM, "bob", b"edited", BOTH, change=(EDIT, 1))
    server.store(ROOM, "bob", b"late", BOTH)
    server.store(ROOM, "bob", b"", BOTH, change=(RECALL, 2))
    server.store(ROOM, "bob", b"edited again", BOTH, change=(EDIT, 1))
    server.store(ROOM, "bob", b"", BOTH, change=(RECALL, 5))
    trim_all(server)
    server.faults.history_page = 2
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    assert kept(store) == [(1, 1, b"edited again"), (2, 2, b""), (3, 0, b"seen 2"), (5, 2, b"")]
    assert changes(screen) == [
        ("MessageEdited", 1), ("MessageRecalled", 2), ("MessageEdited", 1), ("MessageRecalled", 5),
    ]  # fmt: skip


async def test_what_was_kept_and_not_taken_is_told_by_the_next_process(server: ScriptedServer) -> None:
    store = MemoryStore()
    client = client_of(server, "ann", store=store)
    await client.connect(10)
    await server.publish(ROOM, "bob", b"one", BOTH)
    await push_change(server, RECALL, 1)
    await eventually(lambda: len(store.messages(ROOM, 10)) == 2)
    await client.close()
    screen = Screen()
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: changes(screen) == [("MessageRecalled", 1)])


async def test_events_are_given_one_by_one_too(server: ScriptedServer) -> None:
    store = MemoryStore()
    client: QimClient = client_of(server, "ann", store=store)
    async with client:
        await server.publish(ROOM, "bob", b"one", BOTH)
        await push_change(server, EDIT, 1, b"two")
        async with asyncio.timeout(10):
            async for one in client.events():
                if isinstance(one, MessageEdited):
                    assert (one.conversation_id, one.by_user_id, one.body) == (ROOM, "bob", b"two")
                    break
        await client.checkpoint()


def test_the_terminal_edits_and_recalls(threaded: ScriptedServer) -> None:
    assert qim(threaded, "bob", "send", "--to", "ann", "hello").exit_code == 0
    said = qim(
        threaded, "ann", "chat", "--to", "bob",
        text="/edit 1\n/recall x\n/recall 1 y\nmine\n/edit #1 hello, all\n/recall 2\n",
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert said.output.count("change message N") == 3, said.output  # three that were wrong
    assert "-- you edited #1: hello, all" in said.output
    assert "-- you recalled #2" in said.output
    again = qim(threaded, "ann", "chat", "--to", "bob", text="/quit\n").output
    assert "bob: hello, all (edited)" in again
    assert "you: (recalled)" in again


def test_edit_and_recall_commands(threaded: ScriptedServer) -> None:
    sent = qim(threaded, "ann", "send", "--to", "bob", "helo").output.split()
    edited = qim(threaded, "ann", "edit", "1", "hello", "--to", "bob", "--id", "e-1")
    assert edited.exit_code == 0, edited.output
    assert edited.output.split()[:2] == [sent[0], "#2"]
    assert qim(threaded, "ann", "edit", "1", "hello", "--to", "bob", "--id", "e-1").output == edited.output
    assert qim(threaded, "ann", "recall", "1", "--group", sent[0]).output.split()[:2] == [sent[0], "#3"]
    shown = qim(threaded, "bob", "history", "--with", "ann").output
    assert "ann: (recalled)" in shown
    assert "ann: (recalled #1)" in shown
    tail = qim(threaded, "bob", "tail", "--from-start", "--count", "3").output
    assert "(recalled #1)" in tail
    assert "(edited #1: hello)" in tail
    wrong = qim(threaded, "ann", "recall", "1")
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)
    threaded.faults.refuse_sends = [("NOT_ALLOWED", None)]
    refused = qim(threaded, "ann", "recall", "1", "--to", "bob")
    assert (refused.exit_code, "NOT_ALLOWED" in refused.output) == (1, True)
