"""docker/, checked without an engine: it fits settings, command line and topics, and opens nothing.

`tests/unit/test_kubernetes.py` does the same for ``docker/k8s``.
"""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from qim_streams.cli import _COMMANDS
from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.console.worker_views import worker_urls
from qim_streams.settings import SECRETS, Settings, load_settings
from qim_streams.stack.plan import SERVER_ROLES, STREAM_ROLES
from qim_streams.streaming import topics

ON_DEMAND = {"webhook", "notification"}  # they need an application's file or a provider's key first
DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE = DOCKER / "compose.yaml"


class OneOfEach(yaml.SafeLoader):
    """Refuses a key that stands twice in a map, as a container engine does: PyYAML takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See the class."""
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def loaded(path: Path) -> dict[str, Any]:
    """A file of one document."""
    content: dict[str, Any] = yaml.load(path.read_text(), OneOfEach)
    return content


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return loaded(COMPOSE)


def test_no_key_stands_twice() -> None:
    """Compose refuses such a file."""
    for path in DOCKER.rglob("*.yaml"):
        assert list(yaml.load_all(path.read_text(), OneOfEach)), path
    with pytest.raises(yaml.constructor.ConstructorError, match="twice"):
        yaml.load("a: 1\nb: {c: 1, c: 2}", OneOfEach)


def test_what_services_name_is_declared(compose: dict[str, Any]) -> None:
    """Compose refuses a volume, secret or dependency that the file does not declare."""
    services = compose["services"]
    used = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if not volume.startswith((".", "/"))
    }
    assert used == set(compose["volumes"])
    assert {one for service in services.values() for one in service.get("secrets", ())} <= set(
        compose["secrets"]
    )
    assert {one for service in services.values() for one in service.get("depends_on", ())} <= set(services)


def test_the_console_is_told_of_every_worker_and_can_reach_it(roles: dict[str, Any]) -> None:
    urls = worker_urls(roles["api"]["environment"]["QIM_CONSOLE_WORKERS"])
    names = set(STREAM_ROLES) - ON_DEMAND
    assert sorted(urls) == sorted(
        f"http://{name}:{roles[name]['environment']['QIM_WEB_PORT']}" for name in names
    )
    for name in STREAM_ROLES:
        environment, published = roles[name]["environment"], roles[name].get("ports", ())
        assert environment["QIM_WEB_ENABLED"] == "true"
        assert environment["QIM_WEB_HOST"] == "0.0.0.0", "else no other container reaches it"
        assert not published, "a web view has no key: it stays inside"


def test_every_role_is_scraped() -> None:
    (ours,) = [
        job
        for job in loaded(DOCKER / "prometheus" / "prometheus.yaml")["scrape_configs"]
        if job["job_name"] == "qim"
    ]
    (found,) = ours["dns_sd_configs"]
    compose = loaded(COMPOSE)
    assert sorted(found["names"]) == sorted([*STREAM_ROLES, *SERVER_ROLES])
    assert str(found["port"]) == compose["x-environment"]["QIM_METRICS_PORT"]


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
            given[field] = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))  # what it is where nobody sets it
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


def test_the_script_makes_every_secret_once_for_containers_and_nobody_else_here(
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
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    # Compose mounts them as they are: a file of 0600 is one that no container can read.
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o444}


def test_three_brokers_change_only_what_three_brokers_need(compose: dict[str, Any], roles: Any) -> None:
    more = loaded(DOCKER / "compose.three-brokers.yaml")["services"]
    assert {name for name in more if name not in compose["services"]} == {"redpanda-1", "redpanda-2"}
    for name in {*roles, "prepare"}:
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
