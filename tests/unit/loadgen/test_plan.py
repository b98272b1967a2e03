"""Plans and traffic: the same in every process, and nobody speaks who cannot."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from qim_streams.demo.traces import SENDS, read_trace
from qim_streams.errors import ConfigError
from qim_streams.ids import is_text_id
from qim_streams.loadgen.mix import MIX, ROOM_SIZES
from qim_streams.loadgen.options import BenchOptions, Kill, check, parse_kill, parse_workload
from qim_streams.loadgen.plan import Plan, make_plan
from qim_streams.loadgen.traffic import Traffic

DATA = Path(__file__).resolve().parents[2] / "data"


def plan(workload: str = "direct", **changed: object) -> Plan:
    """A plan of the workload."""
    name, size, trace = parse_workload(workload)
    options = check(BenchOptions(workload=name, group_size=size, trace=trace, **changed))  # type: ignore[arg-type]
    return make_plan(options, "t", "demo", read_trace(trace) if trace is not None else None)


@pytest.mark.parametrize("workload", ["direct", "group:30", "mixed", "large"])
def test_every_process_draws_senders_of_its_own_who_are_online_members(workload: str) -> None:
    whole = plan(workload, users=300, connections=120, processes=3)
    assert whole == plan(workload, users=300, connections=120, processes=3)
    for process in range(3):
        traffic = Traffic(whole, process, Random(1))
        for _ in range(500):
            draw = traffic.draw()
            assert draw.user % 3 == process
            assert draw.user < 120
            assert draw.user in whole.conversations[draw.conversation].members
            assert draw.size >= 24


def test_direct_chats_are_pairs_and_every_online_user_has_some() -> None:
    whole = plan(users=60, connections=50, contacts=10)
    assert len({one.conversation_id for one in whole.conversations}) == len(whole.conversations)
    degree: Counter[int] = Counter()
    for one in whole.conversations:
        low, high = one.members
        assert low < high < 60
        assert low < 50
        assert one.direct
        degree.update(one.members)
    assert all(degree[user] for user in range(50))
    assert sum(degree[user] for user in range(50)) / 50 == pytest.approx(10, rel=0.15)


def test_groups_have_their_size_and_a_member_who_can_speak() -> None:
    whole = plan("group:40", users=1_000, connections=5, groups=30, processes=1)
    for number, one in enumerate(whole.conversations):
        assert len(set(one.members)) == 40
        assert whole.online_of(number)
        assert is_text_id(one.conversation_id)
    assert is_text_id(whole.user_id(0))


def test_the_mix_has_its_shares() -> None:
    whole = plan("mixed", users=400, connections=200)
    traffic = Traffic(whole, 0, Random(5))
    draws = [traffic.draw() for _ in range(20_000)]
    sizes = Counter(len(whole.conversations[draw.conversation].members) for draw in draws)
    for part in MIX:
        assert sizes[part.members] / 20_000 == pytest.approx(part.weight, abs=0.02)
    assert sum(part.weight for part in MIX) == pytest.approx(1)


def test_room_sizes_are_those_of_the_rooms() -> None:
    rooms = sorted(
        row.body_bytes
        for name in ("room-a", "room-b")
        for row in read_trace(DATA / f"{name}.csv").rows
        if row.kind in SENDS
    )
    rng = Random(1)
    drawn = sorted(ROOM_SIZES(rng) for _ in range(20_000))
    for share, tolerance in ((0.5, 0.05), (0.75, 0.05), (0.9, 0.05), (0.99, 0.15)):
        wanted = rooms[int(share * len(rooms))]
        assert drawn[int(share * len(drawn))] == pytest.approx(wanted, rel=tolerance)


def test_a_trace_is_played_in_its_own_time() -> None:
    room = read_trace(DATA / "room-b.csv")
    users = 1 + max(row.user for row in room.rows)
    whole = plan(f"trace:{DATA / 'room-b.csv'}", users=users, connections=users, speed=1_000.0)
    assert whole.timed is not None
    sends = [row for row in room.rows if row.kind in SENDS]
    assert len(whole.timed) == len(sends)
    assert whole.timed[0].at_ns == 0
    span_ms = sends[-1].at_ms - sends[0].at_ms
    assert whole.timed[-1].at_ns == pytest.approx(span_ms * 1e6 / 1_000)
    assert [row.user for row in whole.timed] == [row.user for row in sends]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("direct", ("direct", 0, None)), ("group:500", ("group", 500, None)), ("large", ("large", 0, None)),
     ("trace:a.csv", ("trace", 0, Path("a.csv")))],
)  # fmt: skip
def test_workloads_are_read(text: str, wanted: tuple[str, int, Path | None]) -> None:
    assert parse_workload(text) == wanted


@pytest.mark.parametrize("text", ["", "group", "group:", "group:1", "group:x", "trace:", "direct:3", "mix"])
def test_wrong_workloads_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--workload"):
        parse_workload(text)


def test_kills_are_read() -> None:
    assert parse_kill("mailbox-1@2.5") == Kill("mailbox-1", 2.5)
    for text in ("mailbox", "@3", "mailbox@", "mailbox@x", "mailbox@-1", "mailbox@nan"):
        with pytest.raises(ConfigError, match="--kill"):
            parse_kill(text)


@pytest.mark.parametrize(
    ("changed", "option"),
    [({"rate": 0}, "--rate"), ({"rate": float("nan")}, "--rate"), ({"duration_s": 0}, "--duration"),
     ({"body": 10}, "--body"), ({"body": 70_000}, "--body"), ({"connections": 500}, "--connections"),
     ({"processes": 0}, "--processes"), ({"rate": 1e6, "duration_s": 600}, "--rate"),
     ({"kills": (Kill("writer", 99),)}, "--kill"), ({"speed": 0}, "--speed"),
     ({"group_size": 500, "workload": "group"}, "--users")],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(changed: dict[str, object], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        check(BenchOptions(**changed))  # type: ignore[arg-type]
