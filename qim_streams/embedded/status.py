"""`status.json`: what a supervisor last said about its roles, for `qim status` and `qim down`.

The file outlives a supervisor that was killed; whether it still speaks the truth is decided by the lock of
the state directory, not by the file. Mode 0600; it holds no secret.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qim_streams.embedded import files
from qim_streams.embedded.locking import lock_holder
from qim_streams.embedded.roles import RoleState

STATUS_NAME = "status.json"
LOCK_NAME = "stack.lock"
FORMAT = 1


@dataclass(slots=True)
class RoleStatus:
    """What is shown about a role. `since_ms`: wall clock (ms) at which the state began."""

    name: str
    state: RoleState
    order: int
    ports: dict[str, int]
    pid: int | None = None
    restarts: int = 0
    since_ms: int = 0
    started_at_ms: int | None = None
    last_exit: int | None = None
    reasons: list[str] = field(default_factory=list)  # why a role that is READY does not serve as it should


@dataclass(frozen=True, slots=True)
class StackStatus:
    """A read `status.json`. `alive`: the state directory is locked, and `pid` holds it."""

    alive: bool
    pid: int
    state: str
    updated_at_ms: int
    message: str | None
    roles: list[RoleStatus] = field(default_factory=list)


def write_status(
    state_dir: Path, *, pid: int, state: str, now_ms: int, roles: list[RoleStatus], message: str | None = None
) -> None:
    """Replace the file atomically."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "pid": pid,
        "state": state,
        "updated_at_ms": now_ms,
        "message": message,
        "roles": [_to_json(role) for role in roles],
    }
    files.write_private_json(state_dir / STATUS_NAME, document)


def read_status(state_dir: Path) -> StackStatus | None:
    """The status of the stack that holds the directory, else the last one; None when there is neither."""
    holder = lock_holder(state_dir / LOCK_NAME)
    document = files.read_json(state_dir / STATUS_NAME)
    if document is not None and document.get("format") != FORMAT:
        document = None
    if holder is not None and (document is None or document["pid"] != holder):
        # It has not come to its first status yet; the file, if any, is of an earlier stack.
        return StackStatus(True, holder, "starting", 0, None)
    if document is None:
        return None
    return StackStatus(
        alive=holder is not None,
        pid=int(document["pid"]),
        state=str(document["state"]),
        updated_at_ms=int(document["updated_at_ms"]),
        message=document.get("message"),
        roles=[_from_json(row) for row in document["roles"]],
    )


def _to_json(role: RoleStatus) -> dict[str, Any]:
    return {
        "name": role.name,
        "state": role.state.value,
        "order": role.order,
        "ports": role.ports,
        "pid": role.pid,
        "restarts": role.restarts,
        "since_ms": role.since_ms,
        "started_at_ms": role.started_at_ms,
        "last_exit": role.last_exit,
        "reasons": role.reasons,
    }


def _from_json(row: dict[str, Any]) -> RoleStatus:
    return RoleStatus(**{**row, "state": RoleState(row["state"])})
