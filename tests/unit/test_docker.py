"""docker/, checked without an engine: it fits settings, command line and topics, and opens nothing."""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from qim_streams.cli import _COMMANDS
from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.settings import SECRETS, Settings, load_settings
from qim_streams.stack.plan import SERVER_ROLES, STREAM_ROLES
from qim_streams.streaming import topics

ON_DEMAND = {"webhook", "notification"}  # they need an application's file or a provider's key first
DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE = DOCKER / "compose.yaml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


@pytest.fixture(scope="module")
def roles(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in compose["services"].items() if name in (*STREAM_ROLES, *SERVER_ROLES)}


def test_every_role_has_a_container(roles: dict[str, Any]) -> None:
    assert roles.keys() == {*STREAM_ROLES, *SERVER_ROLES}


def test_containers_run_what_the_command_line_and_the_agents_offer(roles: dict[str, Any]) -> None:
    for name, service in roles.items():
        if name in SERVER_ROLES:
            assert service["command"] == [name]
            assert name in _COMMANDS
        else:
            assert service["entrypoint"][:2] == ["faust", "--loop"]
            assert STREAM_ROLES[name] in service["entrypoint"]
            assert importlib.util.find_spec(STREAM_ROLES[name]) is not None


def test_every_variable_is_a_setting_with_a_legal_value(
    roles: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, service in roles.items():
        environment = dict(service["environment"])
        assert environment["QIM_PROBE_URL"].startswith("http://127.0.0.1:")
        given: dict[str, Any] = {}
        for variable, value in environment.items():
            field = variable.removeprefix("QIM_").lower()
            if field == "probe_url":
                continue
            assert field in Settings.model_fields, f"{name}: {variable}"
            if str(value).startswith("/run/secrets/"):
                kept = tmp_path / field
                kept.write_text("redis://qim:pw@redis:6379/0" if field == "redis_url_file" else "s" * 40)
                assert Path(str(value)).name in service["secrets"]
                value = str(kept)
            given[field] = value
        settings = load_settings(**given)
        port = int(environment["QIM_PROBE_URL"].rsplit(":", 1)[1].split("/")[0])
        listening = settings.web_port if name in STREAM_ROLES else getattr(settings, f"{name}_port")
        assert port == listening, f"{name}: the probe asks another port"


def test_nodes_have_names_and_directories_of_their_own(roles: dict[str, Any]) -> None:
    assert all(service["environment"]["QIM_NODE_ID"] == name for name, service in roles.items())
    assert all(service["volumes"][0] == f"{name}:/var/lib/qim" for name, service in roles.items())


def test_roles_have_limits_and_no_rights_that_they_do_not_need(roles: dict[str, Any]) -> None:
    for service in roles.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys()


def test_secrets_come_by_file_and_are_not_in_the_tree(compose: dict[str, Any]) -> None:
    assert all(one["file"].startswith("secrets/") for one in compose["secrets"].values())
    assert (
        not list(DOCKER.glob("secrets/*")) or "docker/secrets/" in (DOCKER.parent / ".gitignore").read_text()
    )
    text = COMPOSE.read_text()
    assert not re.search(r"(?i)(password|secret|key): [^{/\n]*[0-9a-f]{16}", text)
    for service in compose["services"].values():
        assert not any(
            name.upper() in variable and "FILE" not in variable
            for variable in service.get("environment", {})
            for name in (*SECRETS, "redis_url")
        )


def test_the_script_makes_every_secret_once_and_for_the_owner_alone(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    made = []
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=60)
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    assert made[0].keys() >= {Path(one["file"]).name for one in compose["secrets"].values()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "secrets").iterdir())


def test_three_brokers_change_only_what_three_brokers_need(compose: dict[str, Any], roles: Any) -> None:
    more = yaml.safe_load((DOCKER / "compose.three-brokers.yaml").read_text())["services"]
    assert {name for name in more if name not in compose["services"]} == {"redpanda-1", "redpanda-2"}
    for name in {*roles, "prepare"} - ON_DEMAND:
        settings = {
            key.removeprefix("QIM_").lower(): value for key, value in more[name]["environment"].items()
        }
        resolved = topics.load().resolve_for(load_settings(**settings))
        assert resolved["qim.outbox.v1"].replication == 3
    assert set(compose["services"]["redpanda"]["command"]) <= set(more["redpanda"]["command"])


def test_the_image_is_pinned_and_runs_as_nobody_special() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["python:3.11-slim-bookworm"] * 2
    assert re.search(r"^USER 10001:10001$", text, re.M)
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M))
    for source in " ".join(copied).split():
        assert (DOCKER.parent / source).exists(), source


def test_ports_are_open_on_loopback_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned_and_checked(compose: dict[str, Any], roles: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name in roles or name == "prepare":
            continue  # their image is built here, with a check of its own
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
    command = " ".join(compose["services"]["redis"]["command"])
    for words in ("--appendonly yes", "--maxmemory-policy noeviction", "--aclfile /run/secrets/redis_acl"):
        assert words in command


def test_kubernetes_has_a_stateful_set_per_role_with_the_settings_that_exist() -> None:
    documents = list(yaml.safe_load_all((DOCKER / "k8s" / "qim.yaml").read_text()))
    (config,) = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
    assert all(name.removeprefix("QIM_").lower() in Settings.model_fields for name in config)
    given = {key.removeprefix("QIM_").lower(): value for key, value in config.items() if "_FILE" not in key}
    assert topics.load().resolve_for(load_settings(**given))["qim.dispatch.v1"].partitions == 256
    sets = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "StatefulSet"}
    every = {*STREAM_ROLES, *SERVER_ROLES}
    assert every - ON_DEMAND <= sets.keys() <= every
    services = {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    for name, spec in sets.items():
        (container,) = spec["template"]["spec"]["containers"]
        assert spec["serviceName"] in services
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        assert container.get("args") == [name] or STREAM_ROLES[name] in container["command"]
        port = config["QIM_WEB_PORT"] if name in STREAM_ROLES else config[f"QIM_{name.upper()}_PORT"]
        assert {"name": "serve", "containerPort": int(port)} in container["ports"]
        mounts = {one["name"] for one in container["volumeMounts"]}
        claimed = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
        assert mounts == {one["name"] for one in spec["template"]["spec"]["volumes"]} | claimed
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    profile = yaml.safe_load((DOCKER.parent / "topics.yaml").read_text())
    assert profile["defaults"]["production"] == {"replication": 3, "min_insync_replicas": 2}
