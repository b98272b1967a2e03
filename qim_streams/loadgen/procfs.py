"""CPU and memory of the stack's processes, read from ``/proc`` by role, children included.

A role that was killed and started again keeps what its dead processes used up to the last reading.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """CPU seconds since the first reading and resident bytes, per role."""

    def __init__(self) -> None:
        self._cpu: dict[str, dict[int, float]] = {}
        self._zero: dict[str, float] = {}
        self.rss: dict[str, int] = {}

    def read(self, roots: Mapping[str, int]) -> None:
        """Read the process trees below `roots` (role -> pid)."""
        table = _table()
        for role, root in roots.items():
            pids = _tree(root, table)
            known = self._cpu.setdefault(role, {})
            known.update({pid: table[pid][1] for pid in pids})
            self._zero.setdefault(role, sum(known.values()))
            self.rss[role] = sum(table[pid][2] for pid in pids)

    def restart(self) -> None:
        """Count CPU from here on."""
        self._zero = {role: sum(known.values()) for role, known in self._cpu.items()}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds per role since the first reading or `restart`."""
        return {role: sum(known.values()) - self._zero[role] for role, known in self._cpu.items()}

    def total_s(self) -> float:
        """CPU seconds of all roles since their processes were started."""
        return sum(sum(known.values()) for known in self._cpu.values())


def environment(pid: int, names: Iterable[str]) -> dict[str, str]:
    """Those of the variables `names` that a process was started with; empty when it cannot be read."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in content.split(b"\0"))
    wanted = set(names)
    found = {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
    return {name: value for name, value in found.items() if name in wanted}


def _table() -> dict[int, tuple[int, float, int]]:
    """pid -> (parent, CPU seconds, resident bytes) of every process that can be read."""
    rows: dict[int, tuple[int, float, int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # it has ended meanwhile
            fields = text.rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            rows[int(entry.name)] = int(fields[1]), ticks * _TICK_S, int(fields[21]) * _PAGE
    return rows


def _tree(root: int, table: Mapping[int, tuple[int, float, int]]) -> Iterable[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, left = [], [root] if root in table else []
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found
