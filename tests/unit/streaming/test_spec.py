"""Specs: relations, and what settings make of a role."""

from typing import Any

import pytest

from qim_streams.errors import ConfigError
from qim_streams.settings import load_settings
from qim_streams.streaming import topics
from qim_streams.streaming.spec import AppSpec, SourceSpec
from tests.unit.streaming.fakes import spec


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": ""}, "role: is empty"),
        ({"sources": ()}, "at least one topic"),
        ({"sources": (SourceSpec("a", 1), SourceSpec("a", 1))}, "named twice"),
        ({"heartbeat_interval_s": 9.0}, "heartbeat_interval_s"),
        ({"session_timeout_s": 100.0}, "session_timeout_s: must not exceed"),
        ({"drain_timeout_s": 29.0}, "drain_timeout_s"),
        ({"lane_records_max": 10}, "lane_records_max: must hold a batch"),
        ({"chunk_records_max": 0}, "chunk_records_max"),
        ({"stall_timeout_s": 5.0}, "stall_timeout_s"),
    ],
)
def test_wrong_relations_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        spec(**changes)


def test_a_role_from_settings() -> None:
    made = AppSpec.from_settings(
        load_settings(mailbox_shards=6, node_id="n7", worker_slot=2, stream_session_timeout_ms=6_000),
        "mailbox-node",
        ["qim.dispatch.v1", "qim.presence.v1"],
        topics.load(),
    )
    assert made.group_id == "qim-mailbox-node"
    assert made.instance_id == "mailbox-node-n7-2"
    assert made.datadir.is_absolute()
    assert made.datadir.name == "mailbox-node-2"
    assert made.session_timeout_s == 6.0
    assert [(s.topic, s.partitions, s.compacted) for s in made.sources] == [
        ("qim.dispatch.v1", 6, False),
        ("qim.presence.v1", 6, True),
    ]
    assert "qim-mailbox-node-lane_watermarks-changelog" in made.topics
    assert "qim.push.v1" in made.topics
    assert "qim.room.v1" not in made.topics


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="not declared"):
        AppSpec.from_settings(load_settings(), "x", ["nope"], topics.load())
