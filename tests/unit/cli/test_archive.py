"""``qim archive``: what is printed is what would be run, and what is shown is what the stores say."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.cli import archive as command
from qim_streams.cli.archive import archive
from qim_streams.errors import ConfigError
from qim_streams.roles import tracing


def test_a_dry_run_prints_every_statement_and_needs_no_cluster() -> None:
    result = CliRunner().invoke(
        archive,
        ["init", "--dry-run", "--replicas", "dc1=3", "--replicas", "dc2=2", "--bucket-seqs", "50"],
        env={"QIM_CASSANDRA_KEYSPACE": "chat", "QIM_CASSANDRA_PORT": "9"},
    )
    assert result.exit_code == 0
    printed = [text.strip() for text in result.output.split(";\n") if text.strip()]
    wanted = schema.create_statements("chat", schema.replication({"dc1": 3, "dc2": 2}, 1))
    assert printed == [*wanted, schema.layout_statement("chat", 50)]
    assert "'dc1': '3', 'dc2': '2'" in result.output


def test_the_bounds_of_the_command_are_those_of_the_schema() -> None:
    assert command.BUCKET_SEQS_DEFAULT == schema.BUCKET_SEQS_DEFAULT
    assert (command.BUCKET_SEQS_MIN, command.BUCKET_SEQS_MAX) == (
        schema.BUCKET_SEQS_MIN,
        schema.BUCKET_SEQS_MAX,
    )


@pytest.mark.parametrize("text", ["dc1", "dc1=", "dc1=x", "dc1=-1", "d'c=1"])
def test_wrong_replicas_are_named(text: str) -> None:
    result = CliRunner().invoke(archive, ["init", "--dry-run", "--replicas", text])
    assert isinstance(result.exception, ConfigError)
    assert "--replicas" in str(result.exception)


@dataclass
class Log:
    """A log of two Outbox partitions."""

    ends: list[int] = field(default_factory=lambda: [10, 3])

    async def partitions(self, topic: str) -> int:
        """How many there are."""
        return len(self.ends)

    async def offsets_at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        """The ends."""
        return {partition: self.ends[partition] for partition in partitions}


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> MemoryArchive:
    """An archive behind partition 0, and one that belongs to another log in partition 1."""
    held = MemoryArchive()
    held.watermarks = {0: 6, 1: 8}

    @asynccontextmanager
    async def opened(settings: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=Log(), archive=held)

    async def counted(settings: object, log: object) -> None:
        return None

    monkeypatch.setattr(tracing, "tracing", opened)
    monkeypatch.setattr(command, "with_partition_counts", counted)
    monkeypatch.setattr(
        command, "server_settings", lambda state_dir: (SimpleNamespace(archive="memory"), None)
    )
    return held


@pytest.mark.usefixtures("stores")
def test_status_shows_watermark_and_lag_and_names_an_archive_of_another_log() -> None:
    result = CliRunner().invoke(archive, ["status"])
    assert result.exit_code == 0
    assert [line.split() for line in result.output.splitlines()[1:3]] == [
        ["0", "10", "6", "3"],
        ["1", "3", "8", "-6"],
    ]
    assert "memory: 3 records to archive" in result.output
    assert "outbox[1]: the archive is ahead of the log by 6" in result.output
    as_json = json.loads(CliRunner().invoke(archive, ["status", "--json"]).stdout)
    assert as_json["partitions"][0] == {"partition": 0, "end": 10, "watermark": 6, "lag": 3}
