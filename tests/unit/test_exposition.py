"""Metrics: a port that is closed unless it is asked for, and targets that a Prometheus can read."""

import json
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import Counter

from qim_streams.embedded.ports import free_ports
from qim_streams.errors import ConfigError
from qim_streams.exposition import TARGETS_FILE, serve_metrics, write_targets

PROBES = Counter("exposition_test_probes_total", "what the test counts")


def test_without_a_port_nothing_listens() -> None:
    serve_metrics("127.0.0.1", 0)


def test_the_port_answers_without_a_series_of_creation_times() -> None:
    (port,) = free_ports(1)
    serve_metrics("127.0.0.1", port)
    PROBES.inc()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
        assert "server" not in answer.headers, "which Python in which version is nobody's business"
    assert "exposition_test_probes_total 1.0" in text
    assert "exposition_test_probes_created" not in text


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"metrics_port: 127\.0\.0\.1:\d+: .*choose another"):
            serve_metrics("127.0.0.1", taken.getsockname()[1])


def test_targets_name_role_and_process(tmp_path: Path) -> None:
    write_targets(tmp_path, {"mailbox": 1001, "mailbox-1": 1002})
    targets = json.loads((tmp_path / TARGETS_FILE).read_text())
    assert [one["targets"] for one in targets] == [["127.0.0.1:1001"], ["127.0.0.1:1002"]]
    assert [one["labels"] for one in targets] == [
        {"role": "mailbox", "process": "mailbox"},
        {"role": "mailbox", "process": "mailbox-1"},
    ]
    write_targets(tmp_path, {})
    assert not (tmp_path / TARGETS_FILE).exists()
