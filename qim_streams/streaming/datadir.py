"""One worker, one data directory: an advisory lock that dies with the process.

RocksDB's own locks are per table partition and are taken late; two workers in one directory would each
hold some partitions and fail at a rebalance, minutes later. This lock refuses the second worker before
it joins the group. The kernel releases it when the process ends, kill -9 included.
"""

import fcntl
import os
from pathlib import Path

from qim_streams.errors import ConfigError

LOCK_NAME = "worker.lock"


class DataDirLock:
    """Holds ``<datadir>/worker.lock`` until `release` or the end of the process."""

    def __init__(self, datadir: Path, role: str) -> None:
        self.path = datadir / LOCK_NAME
        self.role = role
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock; ConfigError that names directory and holder when another process has it."""
        if self._fd is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(fd)
            raise ConfigError(
                f"data directory {self.path.parent} is in use by {holder}: "
                "give every worker its own (QIM_WORKER_SLOT), or stop that process"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{self.role} pid {os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock up. The file stays: removing it would race with the next holder."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
