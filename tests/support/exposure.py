"""Where secrets and messages must not be: in argument vectors, in logs, in what a process says of itself."""

from collections.abc import Iterable
from pathlib import Path


def in_arguments(pids: Iterable[int], secrets: Iterable[str]) -> list[str]:
    """Processes whose arguments hold one of `secrets`; what is gone is passed over."""
    wanted, found = [secret.encode() for secret in secrets], []
    for pid in pids:
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found += [f"pid {pid}: {argv[:200]!r}" for secret in wanted if secret in argv]
    return found


def in_files(directory: Path, secrets: Iterable[str], pattern: str = "*.log") -> list[str]:
    """Files below `directory` that hold one of `secrets`, as text or as hexadecimal."""
    wanted = [form for secret in secrets for form in (secret.encode(), secret.encode().hex().encode())]
    found = []
    for path in sorted(directory.rglob(pattern)):
        content = path.read_bytes()
        found += [f"{path.name}: {form[:12]!r}..." for form in wanted if form in content]
    return found


def descendants(pid: int) -> list[int]:
    """A process and everything that it started."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            todo += map(int, task.read_text().split())
    return found
