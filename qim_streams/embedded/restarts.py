"""Requests to restart a role, from ``qim restart`` to the supervisor of a state directory: one file per role.

A request is kept until the supervisor has taken it; those of an earlier supervisor are dropped at the start.
Whoever may write to the state directory may ask; nothing else is needed, and nothing listens.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.roles import NAME_PATTERN

FOLDER = "restart"


def ask(state_dir: Path, role: str) -> None:
    """Ask for a restart of `role`; EmbeddedError for what is no name of a role."""
    if not NAME_PATTERN.fullmatch(role):
        raise EmbeddedError(f"role name {role!r}: see `qim status` for the names")
    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / role).touch(mode=0o600)


def take(state_dir: Path, known: Collection[str]) -> list[str]:
    """The roles that a restart is asked for, and no more asked for from now on. Unknown names are dropped."""
    folder, asked = state_dir / FOLDER, []
    try:
        found = sorted(folder.iterdir())
    except OSError:  # nobody has ever asked, or the disk is in trouble: the next look tells
        return []
    for path in found:
        with contextlib.suppress(OSError):
            path.unlink()
            asked.append(path.name)
    return [name for name in asked if name in known]
