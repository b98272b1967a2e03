"""Small files that are either old or new, never half, and private from their first byte."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` by `content` atomically, mode 0600; its directory is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_private_json(path: Path, value: Mapping[str, Any]) -> None:
    """`write_private` of a JSON document."""
    write_private(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None when it is missing or not one."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
