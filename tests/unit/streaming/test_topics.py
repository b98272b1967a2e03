"""topics.yaml and its loader."""

import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from qim_streams.errors import ConfigError
from qim_streams.settings import load_settings
from qim_streams.streaming import topics

DISPATCH = "qim.dispatch.v1"


def document(**changes: Any) -> dict[str, Any]:
    topic: dict[str, Any] = {
        "contract": "§4",
        "key": "k",
        "partitioning": "hash",
        "partitions": {"dev": 4, "production": 16},
        "cleanup": "delete",
        "retention_ms": 1000,
        "producer": "a",
        "consumers": ["b"],
    }
    topic.update(changes)
    both = {"replication": 1, "min_insync_replicas": 1}
    return {
        "version": 1,
        "defaults": {"dev": both, "production": both},
        "topics": {"one": {key: value for key, value in topic.items() if value is not None}},
    }


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "topics.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_declared_topics_are_valid_and_complete() -> None:
    resolved = topics.load().resolve("dev")
    assert {name: resolved[name].partitions for name in resolved if name.startswith("qim.")} == {
        "qim.outbox.v1": 2,
        "qim.dispatch.v1": 4,
        "qim.presence.v1": 4,
        "qim.mapping.v1": 1,
        "qim.push.v1": 4,
        "qim.push-task.v1": 4,
        "qim.push-device.v1": 4,
        "qim.push-result.v1": 4,
        "qim.membership.v1": 2,
        "qim.room.v1": 4,
        "qim.dead-letter.v1": 1,
    }


def test_production_has_its_own_counts() -> None:
    resolved = topics.load().resolve("production")
    assert resolved[DISPATCH].partitions == resolved["qim.presence.v1"].partitions == 256
    assert (resolved[DISPATCH].replication, resolved[DISPATCH].min_insync_replicas) == (3, 2)


def test_dispatch_is_never_compacted_and_outlives_the_dedup() -> None:
    """W needs every offset; retention must exceed dispatch_progress_retention."""
    dispatch = topics.load().resolve("production")[DISPATCH]
    assert dispatch.cleanup == "delete"
    assert dispatch.retention_ms is not None
    assert dispatch.retention_ms > load_settings().dispatch_progress_retention_s * 1000


def test_an_override_moves_what_follows_it() -> None:
    resolved = topics.load().resolve("dev", {DISPATCH: 3})
    followers = [name for name, topic in topics.load().topics.items() if topic.copartition_with == DISPATCH]
    assert len(followers) >= 3
    assert {resolved[name].partitions for name in [DISPATCH, *followers]} == {3}


def test_settings_move_the_counts() -> None:
    resolved = topics.load().resolve_for(load_settings(mailbox_shards=5, outbox_partitions=2))
    assert resolved["qim.presence.v1"].partitions == 5
    assert resolved["qim-fanout-coordinator-conversation_progress-changelog"].partitions == 2


def test_production_wants_its_counts_set() -> None:
    with pytest.raises(ConfigError, match="QIM_OUTBOX_PARTITIONS: must be set"):
        topics.load().resolve_for(load_settings(topic_profile="production"))
    settings = load_settings(
        topic_profile="production",
        outbox_partitions=64,
        mailbox_shards=256,
        connection_shards=64,
        room_partitions=32,
    )
    assert topics.load().resolve_for(settings)[DISPATCH].partitions == 256


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ({"qim.presence.v1": 4}, "follows qim.dispatch.v1"),
        ({"nothing": 4}, "not declared"),
        ({DISPATCH: 0}, "1 to 4096"),
    ],
)
def test_a_wrong_override_is_refused(override: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        topics.load().resolve("dev", override)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"partitions": None}, "topics.one: .*partitions or copartition_with"),
        ({"copartition_with": "two"}, "topics.one: .*either partitions"),
        ({"partitions": None, "copartition_with": "two"}, "'two' is not declared"),
        ({"partitions": {"dev": 4}}, "one for production"),
        ({"partitions": {"dev": 0, "production": 4}}, "must be 1 to 4096"),
        ({"cleanup": "shred"}, "topics.one.cleanup"),
        ({"retention_ms": None}, "topics.one: .*retention_ms"),
        ({"cleanup": "compact"}, "topics.one: .*retention_ms"),
        ({"partitions_setting": "nope"}, "no setting 'nope'"),
        ({"consumers": []}, "topics.one.consumers"),
        ({"surprise": 1}, "topics.one.surprise"),
    ],
)
def test_errors_name_topic_and_field(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        topics.load(write(tmp_path, document(**changes)))


def test_insync_above_replication_is_refused(tmp_path: Path) -> None:
    content = document()
    content["defaults"]["dev"] = {"replication": 1, "min_insync_replicas": 2}
    with pytest.raises(ConfigError, match="nothing could ever be written"):
        topics.load(write(tmp_path, content))


def test_a_file_that_is_not_yaml_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "topics.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not YAML"):
        topics.load(tmp_path / "topics.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        topics.load(tmp_path / "missing.yaml")


class SlowBrokers:
    """An admin client of brokers whose metadata follows what they have created step by step."""

    def __init__(self, *told: dict[str, list[int]]) -> None:
        self._told, self.looks = list(told), 0

    def list_topics(self, timeout: float) -> SimpleNamespace:
        """Topic -> the leader of each partition."""
        self.looks += 1
        now = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(
                    partitions={at: SimpleNamespace(leader=one) for at, one in enumerate(leaders)}
                )
                for name, leaders in now.items()
            }
        )

    def create_topics(self, wanted: list[Any], operation_timeout: float) -> dict[str, "Future[None]"]:
        """Everything is created at once."""
        done: Future[None] = Future()
        done.set_result(None)
        return {one.topic: done for one in wanted}


def test_what_was_created_is_there_when_apply_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers answer first and tell of the topics later: without them, without a leader, with all."""
    monkeypatch.setattr(topics, "_SEEN_POLL_S", 0.0)
    (name, one), *_ = topics.load().resolve("dev").items()
    admin = SlowBrokers({}, {}, {name: []}, {name: [-1, 0]}, {name: [0, 0]})
    assert topics.apply(admin, {name: one}) == [name]  # type: ignore[arg-type]
    assert admin.looks == 5


def test_what_stays_unseen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """ConfigError with the topic and what to do; no endless wait."""
    monkeypatch.setattr(topics, "_SEEN_POLL_S", 0.0)
    monkeypatch.setattr(topics, "_ADMIN_TIMEOUT_S", 0.01)
    (name, one), *_ = topics.load().resolve("dev").items()
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} yet; run `qim topics check`"):
        topics.apply(SlowBrokers({}), {name: one})  # type: ignore[arg-type]


class SilentBrokers(SlowBrokers):
    """List their topics, and answer nothing else."""

    def create_topics(self, wanted: list[Any], operation_timeout: float) -> dict[str, "Future[None]"]:
        """No answer."""
        return {one.topic: Future() for one in wanted}

    def describe_configs(self, wanted: list[Any], request_timeout: float) -> dict[Any, "Future[None]"]:
        """No answer."""
        return {one: Future() for one in wanted}


def test_brokers_that_do_not_answer_are_told_of_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """ConfigError, not the driver's bare TimeoutError: a role's last words are what an operator reads."""
    monkeypatch.setattr(topics, "_ADMIN_TIMEOUT_S", 0.01)
    (name, one), *_ = topics.load().resolve("dev").items()
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} cannot be created: the brokers did not"):
        topics.apply(SilentBrokers({}), {name: one})  # type: ignore[arg-type]
    there = SilentBrokers({name: [0] * one.partitions})
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} cannot be looked at: the brokers did not"):
        topics.check(there, {name: one})  # type: ignore[arg-type]
