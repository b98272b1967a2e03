"""What the supervisor runs and when it gives up: role specifications, restart budget, back-off. Pure.

A role is one process with a name, a place in the start order and a proof of readiness. Roles of equal
`order` start together; the next order starts when all of them are ready; stopping goes backwards.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from qim_streams.embedded.errors import EmbeddedError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
ROLES_MAX = 256

Ready = Callable[[], bool] | str | int | None
"""Proof of readiness: a callable (run on another thread, True = ready), an `http://host:port/path` that
answers 2xx, a loopback TCP port that accepts, or None: ready as soon as it runs."""


class RoleState(Enum):
    """Where a role is. READY is the only one in which it serves."""

    WAITING = "waiting"  # for roles of a lower order
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"  # died; started again in a moment
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # restart budget used up


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One supervised process. `env` is all it gets besides PATH, HOME, locale and QIM_* variables.

    `ports` are for people to read (and are checked free before the first start); `order`: lower starts
    first and stops last; `exited` is told each exit code; `health` says, from then on, why a role that runs
    does not serve as it should (see `readiness`); `pass_fds` stay open in the process;
    `inherit_settings` False keeps QIM_* variables (secrets among them) from a foreign program.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold secrets
    ports: Mapping[str, int] = field(default_factory=dict)
    ready: Ready = None
    order: int = 100
    ready_deadline_s: float = 30.0
    stop_grace_s: float = 30.0  # what docs/operations.md asks of platforms
    cwd: Path | None = None
    pass_fds: tuple[int, ...] = ()
    exited: Callable[[int], None] | None = None
    health: Callable[[], list[str]] | None = None
    inherit_settings: bool = True


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `restarts_max` restarts in any `window_s` per role; delays double from first to last."""

    restarts_max: int = 5
    window_s: float = 60.0
    backoff_first_s: float = 0.05
    backoff_last_s: float = 5.0


class RestartBudget:
    """The restarts of one role under a `RestartPolicy`. Time comes in as an argument (seconds, any zero)."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque()

    def next_delay_s(self, now_s: float) -> float | None:
        """Book a restart at `now_s`: seconds to wait before it, or None when the budget is used up."""
        while self._recent and now_s - self._recent[0] >= self._policy.window_s:
            self._recent.popleft()
        if len(self._recent) >= self._policy.restarts_max:
            return None
        doubled_s = self._policy.backoff_first_s * float(2 ** len(self._recent))
        delay_s = min(doubled_s, self._policy.backoff_last_s)
        self._recent.append(now_s)
        return delay_s


def start_groups(roles: Sequence[RoleSpec]) -> list[list[RoleSpec]]:
    """Roles by ascending order, those of equal order together; EmbeddedError for a bad or repeated name."""
    if len(roles) > ROLES_MAX:
        raise EmbeddedError(f"{len(roles)} roles are more than {ROLES_MAX}; run them on more machines")
    seen: set[str] = set()
    for role in roles:
        # The name becomes a file name.
        if not NAME_PATTERN.fullmatch(role.name) or role.name in seen:
            raise EmbeddedError(f"role name {role.name!r}: must be unique, lower case, digits, '.', '_', '-'")
        seen.add(role.name)
    orders = sorted({role.order for role in roles})
    return [[role for role in roles if role.order == order] for order in orders]
