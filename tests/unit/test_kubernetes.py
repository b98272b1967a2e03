"""docker/k8s, checked without a cluster: by the schemas of Kubernetes, and against settings and roles."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from qim_streams.console.worker_views import worker_urls
from qim_streams.settings import Settings, load_settings
from qim_streams.stack.plan import SERVER_ROLES, STREAM_ROLES
from qim_streams.streaming import topics

DOCKER = Path(__file__).resolve().parents[2] / "docker"
MANIFEST = DOCKER / "k8s" / "qim.yaml"
ON_DEMAND = {"webhook", "notification"}  # they need an application's file or a provider's key first
OLDEST, NEWEST = "1.25", "1.37"  # versions of Kubernetes


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


@pytest.fixture(scope="module")
def config(documents: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
    return dict(found)


@pytest.fixture(scope="module")
def sets(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "StatefulSet"}


def pods(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pod of each document that makes some."""
    for one in documents:
        if "template" in one.get("spec", {}):
            yield one["spec"]["template"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_schemas_of_kubernetes_take_it(documents: list[dict[str, Any]], version: str) -> None:
    """Strict: a field that Kubernetes does not know, a typing error, is refused."""
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="extra kubernetes: that Kubernetes takes the manifests is unproven"
    )
    for document in documents:
        schemas.validate(document, version, strict=True)
    wrong = dict(documents[0], dta={})
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, version, strict=True)


def test_the_settings_exist_and_fit_together(config: dict[str, str]) -> None:
    assert all(name.removeprefix("QIM_").lower() in Settings.model_fields for name in config)
    given = {key.removeprefix("QIM_").lower(): value for key, value in config.items() if "_FILE" not in key}
    assert topics.load().resolve_for(load_settings(**given))["qim.dispatch.v1"].partitions == 256
    profile = yaml.safe_load((DOCKER.parent / "topics.yaml").read_text())
    assert profile["defaults"]["production"] == {"replication": 3, "min_insync_replicas": 2}


def test_every_role_has_a_stateful_set(
    documents: list[dict[str, Any]], config: dict[str, str], sets: dict[str, Any]
) -> None:
    every = {*STREAM_ROLES, *SERVER_ROLES}
    assert every - ON_DEMAND <= sets.keys() <= every
    services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
    for name, spec in sets.items():
        (container,) = spec["template"]["spec"]["containers"]
        assert container.get("args") == [name] or STREAM_ROLES[name] in container["command"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        port = config["QIM_WEB_PORT"] if name in STREAM_ROLES else config[f"QIM_{name.upper()}_PORT"]
        assert {"name": "serve", "containerPort": int(port)} in container["ports"]
        service = services[spec["serviceName"]]
        assert service["selector"] == spec["selector"]["matchLabels"]
        assert int(port) in {one["port"] for one in service["ports"]}
        if service.get("clusterIP") == "None":  # by the names of its pods, which must be there before ready
            assert service["publishNotReadyAddresses"] is True
        assert container["readinessProbe"]["httpGet"] == {
            "path": "/ready" if name in STREAM_ROLES else "/readyz",
            "port": "serve",
        }


def test_pods_may_do_nothing_that_they_do_not_need(documents: list[dict[str, Any]]) -> None:
    found = list(pods(documents))
    assert len(found) > len(SERVER_ROLES)
    for pod in found:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= container["resources"].keys()


def test_what_is_mounted_is_declared(documents: list[dict[str, Any]]) -> None:
    for one in documents:
        spec = one.get("spec", {})
        if "template" not in spec:
            continue
        pod = spec["template"]["spec"]
        declared = {volume["name"] for volume in pod["volumes"]}
        declared |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == declared


def test_secrets_come_by_file(documents: list[dict[str, Any]], config: dict[str, str]) -> None:
    """The files of `docker/secrets.sh`, and in no variable."""
    made = (DOCKER / "secrets.sh").read_text()
    files = {name: value for name, value in config.items() if name.endswith("_FILE")}
    assert files
    for name, value in files.items():
        assert value == f"/run/secrets/qim/{name.removeprefix('QIM_').removesuffix('_FILE').lower()}"
        assert Path(value).name in made
    assert not [one for one in documents if one["kind"] == "Secret"]


def test_the_console_is_told_of_every_pod_of_a_worker(config: dict[str, str], sets: dict[str, Any]) -> None:
    wanted = [
        f"http://{name}-{number}.{spec['serviceName']}:{config['QIM_WEB_PORT']}"
        for name, spec in sets.items()
        if name in STREAM_ROLES
        for number in range(spec["replicas"])
    ]
    assert sorted(worker_urls(config["QIM_CONSOLE_WORKERS"])) == sorted(wanted)


def test_only_gateways_and_the_api_are_for_everybody(
    documents: list[dict[str, Any]], config: dict[str, str]
) -> None:
    (policy,) = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress"]
    open_to_all = [rule for rule in policy["ingress"] if "from" not in rule]
    ports = {str(port["port"]) for rule in open_to_all for port in rule["ports"]}
    assert ports == {config["QIM_GATEWAY_PORT"], config["QIM_API_PORT"]}
    labels = policy["podSelector"]["matchLabels"]
    assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in pods(documents))
