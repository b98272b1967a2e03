"""Arithmetic and options of the measurements of rooms, idle connections and notifications; nothing is
started here."""

from array import array
from types import SimpleNamespace

import msgpack
import pytest

from tests.perf import idle, notifications, room_joins, rooms


def test_a_batch_is_decoded_once_for_all_and_the_memory_is_bounded() -> None:
    batch = msgpack.packb({"t": "ROOM_BATCH", "rooms": []})
    assert rooms.decoded(batch) is rooms.decoded(bytes(batch))
    answer = msgpack.packb({"t": "JOINED", "rid": 1})
    assert rooms.decoded(answer) is not rooms.decoded(answer)
    for number in range(3 * rooms.RECENT_MAX):
        rooms.decoded(msgpack.packb({"t": "ROOM_BATCH", "rooms": [], "n": number}))
    assert len(rooms._recent) <= rooms.RECENT_MAX


def test_a_size_of_idle_connections_is_told_per_connection() -> None:
    size = idle.Size(
        1_000,
        250.0,
        {"gateway": 60 * 2**20, "mailbox": 50 * 2**20},
        {"gateway": 20_000 * 1_024, "mailbox": 1_000 * 1_024},
        {"gateway": 0.034, "mailbox": 0.011},
        0,
    )
    cells = idle.line_of(size).split()
    assert cells == ["1000", "250", "60", "20.0", "1.0", "0.03", "0.01"]
    assert len(idle.line_of(size)) == len(idle.HEAD)


def test_a_storm_is_told_per_connection_and_second() -> None:
    storm = room_joins.Storm(array("d", [1.0] * 98 + [50.0, 70.0]), array("d", [3.0, 9.0]), 2, 10.0)
    guests = [SimpleNamespace(events=2, frames=100) for _ in range(5)]
    room = SimpleNamespace(storm=storm, guests=guests, cores=lambda: {"gateway": 0.5, "rooms": 0.02})
    text = "\n".join(room_joins.lines_of(room, 102, 10.0))  # type: ignore[arg-type]
    assert "102 joins due in 10 s by 5 connections: 100 done in 10.0 s (10/s), 2 refused" in text
    assert "P50 1.0 ms, P99 70.0 ms" in text
    assert "0.200 events, 10.00 batches" in text
    assert "sender's ACK: P50 9.0 ms, P99 9.0 ms of 2" in text
    assert "gateway 0.50, rooms 0.02" in text


def test_notifications_are_told_per_second_and_core() -> None:
    told = notifications.Told(
        1_000,
        1_003,
        1_000,
        2.0,
        {"notification": 0.1, "redis": 0.02, "provider": 0.0},
        {"notification": 1.5, "redis": 0.2, "provider": 0.4},
    )
    text = "\n".join(notifications.lines_of(told))
    assert "1000 of 1000 notifications in 2.0 s: 500/s, 3 twice" in text
    assert "role 100 µs to queue, 1500 µs to send: 625/s and core" in text
    assert "Redis 20 and 200 µs, provider 400 µs" in text
    assert "notification 0.75, redis 0.10, provider 0.20" in text


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (idle, ["--connections", "5", "1"]),
        (idle, ["--connections", "0"]),
        (idle, ["--connections", "100000000"]),
        (room_joins, ["--joins", "0"]),
        (room_joins, ["--seconds", "0"]),
        (rooms, ["--viewers", "5", "1"]),
        (notifications, ["--groups", "0"]),
        (notifications, ["--messages", "0"]),
        (notifications, ["--devices", "401", "--groups", "1"]),
    ],
)
def test_wrong_options_are_named(
    program: SimpleNamespace, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
