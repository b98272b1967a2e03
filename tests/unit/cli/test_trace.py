"""``qim trace`` and ``qim tables`` without servers: what they print, what they refuse, where they look."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from qim_streams.cli import main
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.cli.tables import document, lanes, span
from qim_streams.cli.trace_text import lane_text, render
from qim_streams.errors import ConfigError
from qim_streams.roles import tracing
from qim_streams.settings import Settings
from qim_streams.spans.rules import trace_id_of
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.progress import FANOUT_PROGRESS, read_progress
from qim_streams.trace.service import TraceDeps, trace_message
from tests.unit.trace.test_trace import MEMBERS, through_all_levels
from tests.unit.trace.world import OUTBOX_PARTITIONS, SHARDS, TENANT, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """A world in which the commands look instead of real servers, in a directory without a stack."""
    made = World(MEMBERS)
    made.log.topics[FANOUT_PROGRESS] = [[] for _ in range(OUTBOX_PARTITIONS)]

    @asynccontextmanager
    async def tracing_here(settings: Settings) -> AsyncIterator[TraceDeps]:
        yield made.deps

    monkeypatch.setattr(tracing, "tracing", tracing_here)
    monkeypatch.setattr(KafkaLogReader, "partitions", lambda self, topic: made.log.partitions(topic))
    monkeypatch.chdir(tmp_path)
    return made


async def test_a_trace_as_text() -> None:
    made = World(MEMBERS)
    message = await through_all_levels(made)
    text = render(await trace_message(made.deps, TENANT, message.message_id))
    lines = text.splitlines()
    assert lines[0] == f"message {message.message_id.hex()}  tenant {TENANT}"
    assert trace_id_of(message.message_id).hex() in lines[1], "what to ask the collector for"
    assert "room #5 from ann (phone), 11 bytes, membership version 3, writer epoch 2" in lines[2]
    levels = {line.split()[0]: line.split()[1:] for line in lines if line[:1].isupper()}
    assert list(levels)[1:] == ["COMMITTED", "DISPATCHED", "MAILBOXED", "PUSHED", "ARCHIVED"]
    assert levels["COMMITTED"][:4] == ["yes", "2023-11-14T22:13:20.002Z", "+2", "ms"]
    assert levels["ARCHIVED"][:3] == ["yes", "-", "-"]
    assert "4 of 4" in text
    assert "secret" not in text


def sent(world: World) -> str:
    """A message that went through everything, as an id on the command line."""
    import asyncio

    return asyncio.run(through_all_levels(world)).message_id.hex()


def test_the_command(world: World) -> None:
    message = sent(world)
    result = CliRunner().invoke(main, ["trace", message, "--tenant", TENANT, "--conversation", "room"])
    assert result.exit_code == 0, result.output
    assert "MAILBOXED" in result.output
    result = CliRunner().invoke(main, ["trace", message, "--tenant", TENANT, "--json"])
    assert json.loads(result.output)["dispatches"][0]["covered"] is True


def test_a_message_that_is_not_there(world: World) -> None:
    sent(world)
    result = CliRunner().invoke(main, ["trace", "ab" * 16, "--tenant", TENANT])
    assert result.exit_code == 1
    assert "note: not in qim.outbox.v1" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["xyz", "--tenant", "acme"], "MESSAGE_ID: must be 32 hex digits"),
        (["ab" * 16], "--tenant: give the tenant"),
        (["ab" * 16, "--tenant", "a:b"], "--tenant: give the tenant"),
        (["ab" * 16, "--tenant", "acme", "--conversation", "a:b"], "--conversation: is not an id"),
        (["ab" * 16, "--state-dir", "nowhere"], "no stack runs in nowhere"),
    ],
)
def test_wrong_arguments_are_one_line(world: World, arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["trace", *arguments])
    assert result.exit_code == 1
    assert text in result.output
    assert len(result.output.splitlines()) == 1


def test_tables(world: World) -> None:
    sent(world)
    result = CliRunner().invoke(main, ["tables"])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert len(rows) == OUTBOX_PARTITIONS + SHARDS
    shard_1 = rows[OUTBOX_PARTITIONS + 1]
    assert shard_1[:5] == ["1", "2", "1", "1", "0"], "shard, end, epoch, W, lag"


def test_tables_of_one_shard_show_its_lanes(world: World) -> None:
    sent(world)
    output = CliRunner().invoke(main, ["tables", "--shard", "4"]).output
    assert "OUTBOX" not in output
    assert "LANES" in output
    result = CliRunner().invoke(main, ["tables", "--shard", "99"])
    assert result.exit_code == 1
    assert "there is no MailboxShard 99" in result.output


async def test_the_json_of_tables_has_the_lags() -> None:
    made = World(MEMBERS)
    made.log.topics[FANOUT_PROGRESS] = [[] for _ in range(OUTBOX_PARTITIONS)]
    await through_all_levels(made)
    shown = json.loads(json.dumps(document(await read_progress(made.log, made.mailboxes, made.archive))))
    assert shown["outbox"][made.partition]["fanout_lag"] == 6
    assert shown["shards"][1]["lag"] == 0
    assert len(shown["shards"][1]["lanes"]) == 64


def test_texts() -> None:
    assert span((3,) * 64) == "3"
    assert span((3, 5, 4)) == "3..5"
    assert lanes(tuple(range(64))).splitlines()[-1].split() == ["56", *map(str, range(56, 64))]
    assert lane_text((1, 2)) == "1,2"
    assert lane_text(tuple(range(20))) == "0,1,2,3,4,5,6,7,... (20)"


# -- which servers


def client_file(directory: Path) -> Path:
    """The description of a running stack."""
    directory.mkdir(parents=True)
    content = {"brokers": "127.0.0.1:7777", "redis_url": "redis://:p@127.0.0.1:6666/0", "tenant": "demo"}
    (directory / "client.json").write_text(json.dumps(content))
    return directory


def test_a_running_stack_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert server_settings(None)[1] == ""
    directory = client_file(tmp_path / ".qim" / "up")
    for given in (None, directory):
        settings, tenant = server_settings(given)
        assert (settings.brokers, tenant) == ("127.0.0.1:7777", "demo")
        assert settings.redis_url.get_secret_value() == "redis://:p@127.0.0.1:6666/0"
        assert settings.archive_dir().resolve() == (directory / "archive").resolve()


def test_a_variable_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIM_BROKERS", "example.org:9092")
    settings, _ = server_settings(client_file(tmp_path / "stack"))
    assert settings.brokers == "example.org:9092"
    assert settings.redis_url.get_secret_value().endswith(":6666/0")


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_description_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)
    with pytest.raises(ConfigError, match=r"client\.json"):
        server_settings(tmp_path)


async def test_partition_counts_come_from_the_log() -> None:
    made = World(MEMBERS)
    settings = await with_partition_counts(Settings(outbox_partitions=1, mailbox_shards=1), made.log)
    assert (settings.outbox_partitions, settings.mailbox_shards) == (OUTBOX_PARTITIONS, SHARDS)
    made.log.topics.pop("qim.push.v1")
    with pytest.raises(ConfigError, match=r"qim\.push\.v1 .*qim topics apply"):
        await with_partition_counts(Settings(), made.log)
