"""docker/compose.yaml, checked without an engine: what the project depends on is set, nothing is open."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from qim_streams.codec import RECORD_BYTES_MAX

COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.yaml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def test_ports_are_open_on_loopback_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned_and_checked(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        tag = service["image"].partition(":")[2]
        assert tag not in ("", "latest")
        assert service["healthcheck"]["test"]


def test_redpanda_is_set_as_the_workers_need_it(compose: dict[str, Any]) -> None:
    flags = dict(
        flag.removeprefix("--set=").split("=", 1)
        for flag in compose["services"]["redpanda"]["command"]
        if flag.startswith("--set=")
    )
    assert flags["redpanda.auto_create_topics_enabled"] == "false"
    assert int(flags["redpanda.kafka_batch_max_bytes"]) > RECORD_BYTES_MAX
    assert int(flags["redpanda.group_min_session_timeout_ms"]) <= 3_000


def test_redis_keeps_what_it_has_and_has_no_default_password(compose: dict[str, Any]) -> None:
    config = compose["configs"]["redis"]["content"]
    assert "${QIM_REDIS_PASSWORD:?" in config
    for line in ("appendonly yes", "maxmemory-policy noeviction"):
        assert line in config
