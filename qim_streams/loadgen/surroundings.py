"""What a figure needs beside it to mean something: machine, versions, settings, commit, command line."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qim_streams import __version__
from qim_streams.embedded.status import read_status
from qim_streams.loadgen.procfs import environment
from qim_streams.settings import Settings

PACKAGES = ("aiokafka", "confluent-kafka", "faust-streaming", "redis", "rocksdict", "uvloop")
SHOWN_SETTINGS = (
    "outbox_partitions", "mailbox_shards", "connection_shards", "commit_group_max", "stream_batch_max",
    "stream_chunk_max", "group_members_max", "large_group_members",
    "per_sender_in_conversation_interval_ms", "topic_profile",
)  # fmt: skip


def stack_settings(state_dir: Path | None) -> dict[str, Any]:
    """The settings of `SHOWN_SETTINGS` that the gateway of a running stack has, defaults included."""
    given: dict[str, str] = {}
    status = read_status(state_dir) if state_dir is not None else None
    if status is not None:
        pids = {role.name: role.pid for role in status.roles if role.pid}
        given = environment(pids.get("gateway", 0), [f"QIM_{name.upper()}" for name in SHOWN_SETTINGS])
    defaults = {name: Settings.model_fields[name].default for name in SHOWN_SETTINGS}
    return {
        name: type(default)(given.get(f"QIM_{name.upper()}", default)) for name, default in defaults.items()
    }


def surroundings(state_dir: Path | None) -> dict[str, Any]:
    """settings, versions, machine, command_line, at and commit of the report; no secret is among them."""
    return {
        "settings": stack_settings(state_dir),
        "versions": {
            "qim-streams": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": {
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
        },
        "command_line": ["qim", *sys.argv[1:]],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str | None:
    """The commit of the source tree, with a plus when files differ from it; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(  # noqa: S603 - no part of it comes from outside
        ["git", "-C", str(root), *words],  # noqa: S607 - whichever git the user has
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout.strip()
