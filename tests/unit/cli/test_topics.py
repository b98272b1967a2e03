"""``qim topics``: what is listed is what topics.yaml declares, and differences fail the command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qim_streams.cli.topics import topics
from qim_streams.errors import ConfigError
from qim_streams.kafka_access import KafkaAccess
from qim_streams.streaming import topics as declared


def test_the_list_is_the_declaration() -> None:
    result = CliRunner().invoke(topics, ["list", "--json"])
    document = json.loads(result.output)
    assert list(document) == list(declared.load().topics)
    assert document["qim.outbox.v1"]["partitions"] == 2
    assert document["qim.outbox.v1"]["producer"] == "writer"


def test_the_list_follows_the_settings() -> None:
    result = CliRunner().invoke(topics, ["list"], env={"QIM_MAILBOX_SHARDS": "3"})
    rows = {line.split()[0]: line.split()[1] for line in result.output.splitlines()}
    assert rows["qim.dispatch.v1"] == rows["qim.presence.v1"] == "3"
    assert rows["qim.outbox.v1"] == "2"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A broker that creates and differs as told."""
    state: dict[str, list[str]] = {"missing": [], "problems": []}
    monkeypatch.setattr(declared, "admin_client", lambda brokers: brokers)
    monkeypatch.setattr(declared, "apply", lambda admin, wanted: state["missing"])
    monkeypatch.setattr(declared, "check", lambda admin, wanted: state["problems"])
    return state


def test_a_local_stack_is_compared_with_the_counts_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: dict[str, list[str]]
) -> None:
    wanted: dict[str, int] = {}

    def check(admin: KafkaAccess, resolved: dict[str, declared.ResolvedTopic]) -> list[str]:
        wanted.update({name: topic.partitions for name, topic in resolved.items()})
        return [] if admin.servers == "127.0.0.1:7777" else [str(admin)]

    monkeypatch.setattr(declared, "check", check)
    about = {"brokers": "127.0.0.1:7777", "outbox_partitions": 7, "mailbox_shards": 9, "tenant": "demo"}
    (tmp_path / "client.json").write_text(json.dumps(about))
    result = CliRunner().invoke(topics, ["check", "--state-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (wanted["qim.outbox.v1"], wanted["qim.dispatch.v1"]) == (7, 9)
    nowhere = CliRunner().invoke(topics, ["check", "--state-dir", str(tmp_path / "none")])
    assert isinstance(nowhere.exception, ConfigError)
    assert "no stack runs in" in str(nowhere.exception)


def test_apply_says_what_it_created(broker: dict[str, list[str]]) -> None:
    broker["missing"] = ["qim.outbox.v1"]
    result = CliRunner().invoke(topics, ["apply"])
    assert result.exit_code == 0
    assert "created qim.outbox.v1 with 2 partitions" in result.output
    assert "topics are as declared" in result.output


@pytest.mark.parametrize("command", ["apply", "check"])
def test_a_difference_is_a_line_and_a_failure(broker: dict[str, list[str]], command: str) -> None:
    broker["problems"] = ["qim.outbox.v1: has 4 partitions, declared are 8"]
    result = CliRunner().invoke(topics, [command])
    assert result.exit_code == 1
    assert "has 4 partitions, declared are 8" in result.output


def test_a_wrong_file_is_one_line(broker: dict[str, list[str]]) -> None:
    from qim_streams.cli import main

    result = CliRunner().invoke(main, ["topics", "check"], env={"QIM_TOPIC_PROFILE": "staging"})
    assert result.exit_code == 1
    assert result.output.startswith("qim topics: QIM_TOPIC_PROFILE:")
    assert len(result.output.splitlines()) == 1
