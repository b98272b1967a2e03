"""One process per directory: an exclusive lock with the holder's number in it.

The lock is `flock`, so the kernel lets go of it when its last holder ends, however it ends. A child that
inherits the descriptor holds it too: a data directory stays locked until its server is really gone.

What it does not do: protect a directory on a network file system without `flock`.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from qim_streams.embedded.errors import StateDirLockedError

RETRY_S = 0.02
DEAD_HOLDER_WAIT_S = 3.0  # a killed parent's children let go within milliseconds
STACK_REMEDY = "stop it (`qim down`) or choose another directory (--state-dir)"
PROBE_WAIT_S = 0.3  # `lock_holder` of somebody else takes the lock for an instant


class DirectoryLock:
    """Exclusive lock on `path` (a file). Not re-entrant; usable as a context manager."""

    def __init__(self, path: Path, *, wait_s: float = 0.0, remedy: str = STACK_REMEDY) -> None:
        """`wait_s`: how long a holder that lives is waited for; `remedy` ends the error's text."""
        self.path, self._wait_s, self._remedy = path, wait_s, remedy
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """True while this object holds the lock."""
        return self._fd is not None

    @property
    def fileno(self) -> int:
        """Descriptor to pass to a child that shall hold the lock too."""
        assert self._fd is not None, "acquire the lock first"
        return self._fd

    def acquire(self) -> None:
        """Take the lock; StateDirLockedError that names the holder when it is not to be had.

        When the holder named in the file is dead, its children are about to let go: that is waited for,
        at most `DEAD_HOLDER_WAIT_S`.
        """
        assert self._fd is None, "the lock is held already"
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait(fd)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Let go; no effect when it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def _wait(self, fd: int) -> None:
        started = time.monotonic()
        while not _try_lock(fd):
            holder = _read_pid(fd)
            if time.monotonic() - started >= max(self._wait_s, _patience_s(holder)):
                who = f"pid {holder}" if holder is not None else "another process"
                raise StateDirLockedError(f"{self.path.parent} is in use by {who}; {self._remedy}", holder)
            time.sleep(RETRY_S)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_holder(path: Path) -> int | None:
    """Number of the process that holds the lock on `path`; None when it is free or just changing hands."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(fd) else _read_pid(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _patience_s(holder: int | None) -> float:
    if holder is None:
        return PROBE_WAIT_S
    return 0.0 if _is_alive(holder) else DEAD_HOLDER_WAIT_S


def _read_pid(fd: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(fd, 32, 0).split(b"\n")[0])
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
