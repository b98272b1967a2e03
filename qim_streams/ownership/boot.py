"""Boot numbers: which incarnation of a worker this is, with proof that the one before is dead.

A worker is named by role, node and slot. `Boot.take` locks the worker's file in the state directory for
the life of the process (the kernel lets go of it when the process dies, however it dies), then raises the
number stored beside it and makes that durable. A newer boot may therefore take the leases of an older one
of the same name at once.

Invariants: two living processes never hold the same name on one state directory; numbers only grow as
long as the state directory lives. A directory that was wiped starts again at 1: its worker then waits for
the old lease to expire.

What it does not do: guard against two machines that use the same node name and different directories. The
lease store's compare-and-set does, and the log says so.

Spec: §11.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from qim_streams.durable_file import write_durably
from qim_streams.errors import ConfigError


@dataclass(slots=True)
class Boot:
    """The right to act as `name`. Keep it until the process ends."""

    name: str
    number: int
    _lock: int

    @classmethod
    def take(cls, state_dir: Path, name: str) -> "Boot":
        """Lock `name` and raise its number; ConfigError when another process has it or a file is unusable.

        Blocks for two fsyncs. `name` is a text id such as ``writer.node-1.0``.
        """
        folder = state_dir / "boot"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"state_dir: cannot write in {folder} ({error.strerror}); set QIM_STATE_DIR"
            ) from error
        try:
            return cls(name, cls._raise_number(lock, folder / f"{name}.boot", name), lock)
        except BaseException:
            os.close(lock)
            raise

    @staticmethod
    def _raise_number(lock: int, path: Path, name: str) -> int:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{name} is already running on {path.parent}: stop it, or give this one another node_id, "
                "worker_slot or state_dir"
            ) from error
        number = _stored(path) + 1
        write_durably(path, f"{number}\n".encode())
        return number

    def release(self) -> None:
        """Let another process take the name. Only after all leases were given up."""
        os.close(self._lock)


def _stored(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return 0
    if not text.isdigit():
        raise ConfigError(
            f"{path}: expected a number, found {text[:40]!r}; write the largest boot number of this worker "
            "seen in its log, or delete the file and wait for its leases to expire"
        )
    return int(text)
