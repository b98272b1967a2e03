"""``qim repair``: what is shown, as text and as JSON, and the exit codes."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from qim_streams.cli import repair as command
from qim_streams.errors import ConfigError
from qim_streams.repair.rules import RepairStatus, ShardStanding
from qim_streams.settings import Settings
from tests.unit.repair.test_rules import outbox

WHOLE = RepairStatus([outbox(proved=True)], [ShardStanding(0, 5, -1, 5, 6, True)], 1)
BEHIND = RepairStatus([outbox(tail=60)], [ShardStanding(0, -1, 5, 5, 6, False)], 0)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[RepairStatus]:
    """The status that the servers have."""
    statuses: list[RepairStatus] = []

    async def read(settings: Settings) -> RepairStatus:
        return statuses[0]

    monkeypatch.setattr(command, "_status", read)
    return statuses


def invoke(*args: str) -> Any:
    return CliRunner().invoke(command.repair, list(args))


def test_whole_is_0_and_something_to_repair_is_3(found: list[RepairStatus]) -> None:
    found[:] = [WHOLE]
    result = invoke("status")
    assert result.exit_code == 0
    assert "everything is whole" in result.output
    found[:] = [BEHIND]
    result = invoke("status")
    assert result.exit_code == 3
    assert "behind" in result.output
    assert "qim repair run" in result.output


def test_the_document_says_how_much_is_behind(found: list[RepairStatus]) -> None:
    found[:] = [BEHIND]
    result = invoke("status", "--json")
    assert result.exit_code == 3
    document = json.loads(result.output)
    assert document["whole"] is False
    assert document["outbox"][0]["standing"] == "behind"
    assert document["outbox"][0]["records_behind"] == 39
    assert document["shards"][0] == {
        "shard": 0, "standing": "behind", "watermark": -1, "goal": 5, "log_end": 6, "owned": False,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["3", "ob", "ob:", "ob:x", "s:3"])
def test_a_wrong_partition_is_named(text: str) -> None:
    result = invoke("run", "--accept", text)
    assert isinstance(result.exception, ConfigError)
    assert "--accept" in str(result.exception)


def test_help_explains_the_standings() -> None:
    text = invoke("status", "--help").output
    assert all(word in text for word in ("whole", "unproved", "behind", "lost"))
