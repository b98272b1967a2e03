"""Where a process shows its metrics to Prometheus: a port of its own, closed unless it is asked for.

What it does not do: authenticate. The port is for the scraper of an internal network, loopback by default;
metrics hold no payload, no user and no secret.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from wsgiref.simple_server import ServerHandler

from prometheus_client import disable_created_metrics, start_http_server

from qim_streams.errors import ConfigError

TARGETS_FILE = "prometheus-targets.json"


def serve_metrics(host: str, port: int) -> None:
    """Answer ``GET /metrics`` from a thread; port 0: do nothing. ConfigError when the port cannot be had."""
    if not port:
        return
    ServerHandler.server_software = ""  # no answer names the interpreter's version
    # Else there is a series beside each counter and histogram, of times that nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise ConfigError(
            f"metrics_port: {host}:{port}: {error.strerror or error}; choose another"
        ) from error


def scrape_targets(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """Targets in the form of Prometheus' file discovery: one per process on this host, named by its role."""
    return [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"role": name.rstrip("-0123456789"), "process": name}}
        for name, port in ports.items()
    ]


def write_targets(state_dir: Path, ports: Mapping[str, int]) -> None:
    """Leave the targets of a local stack in its state directory; none: remove what an earlier run left."""
    path = state_dir / TARGETS_FILE
    if not ports:
        path.unlink(missing_ok=True)
        return
    path.write_text(json.dumps(scrape_targets(ports), indent=1) + "\n")
