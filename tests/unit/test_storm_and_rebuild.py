"""What needs no server of ``tests.perf.reconnect_storm`` and ``rebuild_time``: plans, checks, options."""

import time
from pathlib import Path
from typing import Any

import pytest

from qim_streams.client import Gap, RebuildFinished
from qim_streams.client.discovery import StackAddress
from qim_streams.client.store import MemoryStore
from qim_streams.loadgen import message
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.wire.frames import Event, Message
from tests.perf import rebuild_time, reconnect_storm, storm_filling
from tests.perf.rebuild_time import Chats, Screen
from tests.perf.storm_clients import Away, Watch
from tests.perf.storm_filling import CLIENTS_FROM, Group, Shape

RUN = 7
ADDRESS = StackAddress(gateway_url="ws://x/ws", tenant="t", jwt_secret="s" * 40)
SHAPE = Shape(clients=250, rounds=3, group=100, messages_each=4, body=64, seed=1)


def test_every_client_is_in_a_group_of_each_round() -> None:
    groups = storm_filling.groups_of(SHAPE, "tag")
    assert [group.number for group in groups] == list(range(9))
    assert len({group.conversation_id for group in groups}) == 9
    for number in range(3):
        of_round = [group for group in groups if group.round == number]
        members = sorted(user for group in of_round for user in group.members)
        assert members == list(range(CLIENTS_FROM, CLIENTS_FROM + 250))
        assert max(len(group.members) for group in of_round) == 100
    assert groups[0].members != groups[3].members
    assert SHAPE.entries == 12


def test_listeners_and_markers_cover_everything() -> None:
    """A listener in each MailboxShard (two at least), a marker in each Outbox partition, in order."""
    for shards in (1, 8):
        users = storm_filling.speakers_of(lambda number: f"u{number}", "t", shards)
        assert {mailbox_shard("t", f"u{number}", shards) for number in users} == set(range(shards))
        assert len(users) == max(2, shards) == len(set(users))
    names = storm_filling.markers_of("tag", "t", 4)
    assert [outbox_partition("t", name, 4) for name in names] == [0, 1, 2, 3]


def entry(seq: int, at: int, number: int, *, name: str = "g", run: int = RUN) -> dict[str, Any]:
    """An entry as the codec gives it: mailbox_seq, conversation_seq, number of the message."""
    body = message.body(run, 0, number, 1, 64)
    said = {"conversation_id": name, "conversation_seq": at, "body": body}
    return {"mailbox_seq": seq, "event_ordinal": 0, "message": said}


@pytest.fixture
def client() -> Away:
    """A client of one group in which two messages (numbers 5 and 6) were said at 11 and 12."""
    group = Group(0, 0, "g", [CLIENTS_FROM])
    group.settle({12: message.message_key(0, 6), 11: message.message_key(0, 5)})
    foreign = Group(1, 0, "h", [])
    foreign.settle({1: message.message_key(0, 9)})
    watch = Watch("ws://x/ws", {"g": group, "h": foreign}, RUN, time.monotonic)
    return Away(watch, "u", "token", [group], 2)


def noted(client: Away) -> dict[str, int]:
    return dict(client._all.noted)


def test_a_client_that_gets_everything_once_misses_nothing(client: Away) -> None:
    client._take([entry(100, 11, 5), entry(102, 12, 6)])
    client._take([entry(102, 12, 6)])  # the same position again: a repeat, which a client drops
    assert (client.missing, noted(client), client._all.entries) == (0, {"repeated": 1}, 2)


@pytest.mark.parametrize(
    ("entries", "wrong", "missing"),
    [
        ([entry(100, 11, 5), entry(101, 11, 5)], "WRONG: twice", 1),
        ([entry(100, 12, 6), entry(101, 11, 5)], "WRONG: out of order", 0),
        ([entry(100, 11, 6)], "WRONG: another body", 1),
        ([entry(100, 11, 5, run=8)], "WRONG: another body", 1),
        ([entry(100, 13, 5)], "WRONG: not of this client", 2),
        ([entry(100, 1, 9, name="h")], "WRONG: not of this client", 2),
        ([entry(100, 1, 9, name="x")], "WRONG: not of this client", 2),
    ],
)
def test_a_client_notices(client: Away, entries: list[dict[str, Any]], wrong: str, missing: int) -> None:
    client._take(entries)
    assert (noted(client), client.missing) == ({wrong: 1}, missing)


CLEAN: dict[str, Any] = {
    "ready": 10, "missing": 0, "noted": {"AUTH_TIMEOUT": 3}, "others_verdict": {"clean": True}, "restarts": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ready": 9}, "1 clients were not ONLINE_READY"),
        ({"missing": 4}, "4 entries never came"),
        ({"noted": {"WRONG: twice": 2}}, "WRONG: twice: 2"),
        ({"others_verdict": {"clean": False}}, "the others"),
        ({"restarts": 1}, "1 roles died"),
    ],
)
def test_a_storm_is_right_or_says_what_was_not(changed: dict[str, Any], said: str) -> None:
    assert reconnect_storm.problems(CLEAN, 10) == []
    (only,) = reconnect_storm.problems(CLEAN | changed, 10)
    assert only.startswith(said)


@pytest.mark.parametrize(
    "argv", [["--clients", "0"], ["--entries", "101"], ["--group", "500"], ["--body", "3"], ["--rate", "0"]]
)
def test_a_storm_refuses_what_it_cannot_do(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        reconnect_storm.parse(argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


def said_and_screen() -> tuple[Chats, Screen]:
    """Two chats; the device had the first message of each and got the second one."""
    chats = Chats(ADDRESS, "tag", RUN, rebuild_time.Asked(2, 1, 64, "memory"))
    screen = Screen()
    for number, name in enumerate(("a", "b")):
        for seq in (1, 2):
            chats.said[name][seq] = message.message_key(0, number * 10 + seq)
        screen.take([event(name, 2, number * 10 + 2)])
    screen.take([RebuildFinished((), True)])
    return chats, screen


def event(name: str, seq: int, number: int) -> Event:
    said = Message(
        message_id=bytes(16), conversation_id=name, conversation_seq=seq, sender_id="u1", kind=0, state=0,
        committed_at=1, body=message.body(RUN, 0, number, 1, 64),
    )  # fmt: skip
    return Event(1, 0, bytes(16), 0, 0, said)


KNOWN = {"a": {1}, "b": {1}}


def test_a_rebuild_that_brought_everything_once() -> None:
    chats, screen = said_and_screen()
    assert rebuild_time.problems(chats, KNOWN, screen) == []
    assert screen.finished is not None


@pytest.mark.parametrize(
    ("deliveries", "said"),
    [
        ([event("a", 2, 2)], "1 messages that came twice"),
        ([event("b", 1, 11)], "1 messages that came twice"),
        ([event("a", 2, 3)], "1 messages that nobody sent"),
        ([RebuildFinished((Gap("a", 1, 3, "TIMEOUT"),), True)], "1 gaps"),
        ([RebuildFinished((), False)], "1 session lists that were not whole"),
    ],
)
def test_a_rebuild_notices(deliveries: list[Any], said: str) -> None:
    chats, screen = said_and_screen()
    screen.take(deliveries)
    assert said in rebuild_time.problems(chats, KNOWN, screen)


def test_a_rebuild_notices_what_is_missing() -> None:
    chats, screen = said_and_screen()
    chats.said["a"][3] = message.message_key(0, 3)
    assert rebuild_time.problems(chats, KNOWN, screen) == ["1 messages that never came"]


def test_the_device_comes_back_with_a_cursor_that_nobody_signed(tmp_path: Path) -> None:
    store = rebuild_time.ForgottenCursor(MemoryStore())
    assert store.load().cursor == rebuild_time.UNKNOWN_CURSOR
    assert not store.is_slow
    with pytest.raises(SystemExit) as ended:
        rebuild_time.parse(["--new", "0"])
    assert ended.value.code == 2
