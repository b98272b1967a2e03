"""Rules, dashboards and runbooks, held against the metrics that really exist."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

import qim_streams
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.roles import archiver, fanout, mailbox, notification, qsession

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docker" / "prometheus" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "docker" / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\bqim_[a-z0-9_]+")
SUFFIXES = ("_bucket", "_sum", "_count", "")


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Every metric of the product with the names of its labels."""
    for module in pkgutil.walk_packages(qim_streams.__path__, "qim_streams."):
        if module.name.rsplit(".", 1)[-1].endswith("metrics"):
            importlib.import_module(module.name)
    found: dict[str, set[str]] = {}
    for collector in list(REGISTRY._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for family in collector.collect() or ():
            found[family.name + ("_total" if family.type == "counter" else "")] = labels
    for family in GatewayCounters().collect():
        found[family.name + ("_total" if family.type == "counter" else "")] = set()
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}: {panel['title']}", target["expr"]


def metric_of(name: str, series: dict[str, set[str]]) -> str | None:
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in series:
            return name.removesuffix(suffix)
    return None


def test_every_expression_asks_for_metrics_and_labels_that_exist(series: dict[str, set[str]]) -> None:
    checked = 0
    for where, expression in expressions():
        for name in NAME.findall(expression):
            metric = metric_of(name, series)
            assert metric is not None, f"{where}: there is no metric {name}"
            for selector in re.findall(rf"{name}{{([^}}]*)}}", expression):
                asked = set(re.findall(r"(\w+)\s*[!=]~?", selector))
                assert asked <= series[metric] | {"job", "role", "instance"}, f"{where}: {selector}"
            checked += 1
    assert checked > 60


def test_labels_of_aggregations_exist(series: dict[str, set[str]]) -> None:
    known = set().union(*series.values()) | {"le", "job", "role", "instance"}
    for where, expression in expressions():
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in labels.split(",")} <= known, f"{where}: {labels}"


NAMES_OF_ROLES = {  # as scrapers name the target (containers, `qim up`) -> as the worker names itself
    "archiver": archiver.ROLE,
    "fanout": fanout.ROLE,
    "mailbox": mailbox.ROLE,
    "notification": notification.ROLE,
    "qsession": qsession.ROLE,
}


def test_a_matcher_knows_both_names_of_a_role() -> None:
    """A target's label `role` takes the place of the metric's own, unless the scraper is told otherwise."""
    checked = 0
    for where, expression in expressions():
        for operator, value in re.findall(r'role(=~|!~|=|!=)"([^"]*)"', expression):
            for target, own in NAMES_OF_ROLES.items():
                pattern = value if "~" in operator else re.escape(value)
                meets = [re.fullmatch(pattern, one) is not None for one in (target, own)]
                assert meets[0] == meets[1], f"{where}: role{operator}{value} knows {target} or {own} only"
            checked += 1
    assert checked >= 4


def test_runbooks_show_the_expression_of_their_alert() -> None:
    for rule in alerts():
        page = (ROOT / rule["annotations"]["runbook"]).read_text()
        assert " ".join(rule["expr"].split()) in " ".join(page.split()), rule["alert"]


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        page = ROOT / rule["annotations"]["runbook"]
        assert page.name == f"{rule['alert']}.md"
        text = page.read_text()
        assert all(part in text for part in ("What it means", "Where to look", "What to do"))
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("Qim*.md")}
    assert pages == set(names)


def test_dashboards_are_complete(series: dict[str, set[str]]) -> None:
    uids = set()
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        uids.add(board["uid"])
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        assert all(panel["targets"] for panel in board["panels"] if panel["type"] != "row")
    assert len(uids) == len(DASHBOARDS) >= 2


def test_metric_names_begin_with_the_stage_that_owns_them(series: dict[str, set[str]]) -> None:
    stages = (
        "archiver|fanout|gateway|history|log|mailbox|notification|ownership|push|qsession|quotas|rooms|sessions|"
        "stream|table|webhook|writer"
    )
    odd = [n for n in series if n.startswith("qim_") and not re.fullmatch(rf"qim_({stages})(_[a-z0-9]+)+", n)]
    assert not odd, "qim_<stage>_<noun>_<unit>"
