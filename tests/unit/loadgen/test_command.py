"""The command line of ``qim bench``: defaults that follow from each other, and refusals with exit code 2."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from qim_streams.cli import bench as command
from qim_streams.loadgen.options import BenchOptions, Kill

DATA = Path(__file__).resolve().parents[2] / "data"


def options(*args: str, fresh: bool = False) -> BenchOptions:
    """The options that the arguments give."""
    context = command.bench.make_context("bench", list(args), resilient_parsing=False)
    assert isinstance(context, click.Context)
    given: dict[str, Any] = context.params
    return command._options(given, fresh=fresh)[0]


def test_defaults() -> None:
    made = options()
    assert (made.workload, made.rate, made.connections, made.users) == ("direct", 1_000, 200, 200)


def test_connections_and_users_follow_from_the_workload() -> None:
    assert (options("--workload", "group:500").connections, options("--workload", "group:500").users) == (
        500,
        500,
    )
    few = options("--workload", "group:500", "--connections", "20")
    assert (few.connections, few.users) == (20, 500)
    large = options("--workload", "large")
    assert (large.connections, large.users) == (1_000, 100_000)
    assert options("--workload", "large", "--members", "2000", "--online", "0.5").connections == 1_000
    room = options("--workload", f"trace:{DATA / 'room-a.csv'}", "--speed", "1000")
    assert (room.connections, room.users) == (479, 479)
    assert options("--users", "400", "--online", "0.25").connections == 100


def test_a_stack_that_has_just_started_warms_up_longer() -> None:
    """Its broker compiles itself at first; a trace has nothing to warm up with."""
    assert (options().warm_up_s, options(fresh=True).warm_up_s) == (5, 30)
    assert options("--warm-up", "0", fresh=True).warm_up_s == 0
    assert options("--workload", f"trace:{DATA / 'room-a.csv'}", fresh=True).warm_up_s == 5


def test_kills_may_be_repeated() -> None:
    made = options("--kill", "mailbox@3", "--kill", "writer@4.5")
    assert made.kills == (Kill("mailbox", 3), Kill("writer", 4.5))


@pytest.mark.parametrize(
    ("args", "named"),
    [(["--rate", "-1"], "--rate"), (["--workload", "no"], "--workload"), (["--online", "2"], "--online"),
     (["--json", "/no/such/folder/x.json"], "--json"), (["--kill", "x"], "--kill"),
     (["--processes", "0"], "--processes"), (["--workload", "trace:/no/such.csv"], "/no/such.csv")],
)  # fmt: skip
def test_what_cannot_be_done_exits_with_2_and_names_the_option(args: list[str], named: str) -> None:
    result = CliRunner().invoke(command.bench, [*args, "--state-dir", "/no/such/folder"])
    assert result.exit_code == 2
    assert named in result.output
