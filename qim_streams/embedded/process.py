"""A child process that cannot outlive its parent, with a log file of its own.

Invariants:

* On Linux the kernel kills the child (SIGKILL) when the thread that forked it ends. That thread must
  therefore live as long as the process: `start_child` refuses any thread but the main one.
* The child leads a session of its own: Ctrl-C in a terminal reaches the parent only, which then stops its
  children in the order it wants.
* When the child has ended, whatever is left of its process group is killed before the child is reaped,
  while its number cannot have been given to anybody else.
* Stopping is SIGTERM, a grace, SIGKILL; it always ends.

What it does not do: restart anything, rotate logs, or protect grandchildren that leave the process group
from an unclean death of the parent. On systems other than Linux a child survives the unclean death of its
parent; the directory locks of `server` still prevent a second one on the same data.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qim_streams.embedded.errors import EmbeddedError

PR_SET_PDEATHSIG = 1
POLL_S = 0.02
KILL_WAIT_S = 10.0  # after SIGKILL only a process in uninterruptible I/O is still there
_ORPHANED_EXIT = 75
_INHERITED_NAMES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_CACHE_HOME"})
_SETTINGS_PREFIX = "QIM_"


class ChildProcess:
    """A running or ended child. Not thread-safe: use it from the thread that started it."""

    def __init__(self, name: str, popen: "subprocess.Popen[bytes]", log_path: Path) -> None:
        self.name, self.log_path = name, log_path
        self.started_at_s = time.monotonic()
        self._popen = popen

    @property
    def pid(self) -> int:
        """Number of the process; also that of its process group."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit code (negative: -signal), or None while it runs."""
        if self._popen.returncode is None and _has_ended(self.pid):
            self._reap()
        return self._popen.returncode

    def wait(self, timeout_s: float) -> int | None:
        """Exit code, or None when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return code

    async def wait_async(self) -> int:
        """Exit code, without blocking the event loop; waits as long as the child runs."""
        if self.poll() is None:
            await _until_ended(self.pid)
        code = self.poll()
        assert code is not None, "a child that can be waited for has an exit code"
        return code

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal to the child alone; False when it has ended."""
        if self.poll() is not None:
            return False
        self._popen.send_signal(number)
        return True

    def stop(self, grace_s: float) -> int:
        """SIGTERM, at most `grace_s`, then SIGKILL. Returns the exit code; EmbeddedError if it stays."""
        if self.send_signal(signal.SIGTERM):
            # A stopped (SIGSTOP) process handles SIGTERM only when it goes on.
            self.send_signal(signal.SIGCONT)
        code = self.wait(grace_s)
        return self.kill() if code is None else code

    def kill(self) -> int:
        """SIGKILL to the whole process group. Returns the exit code; EmbeddedError if it stays."""
        self.kill_nowait()
        code = self.wait(KILL_WAIT_S)
        if code is None:
            raise self._stuck()
        return code

    async def stop_async(self, grace_s: float) -> int:
        """`stop` without blocking the event loop."""
        if self.send_signal(signal.SIGTERM):
            self.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait_async()
        except TimeoutError:
            return await self.kill_async()

    async def kill_async(self) -> int:
        """`kill` without blocking the event loop."""
        self.kill_nowait()
        try:
            async with asyncio.timeout(KILL_WAIT_S):
                return await self.wait_async()
        except TimeoutError:
            raise self._stuck() from None

    def kill_nowait(self) -> None:
        """SIGKILL to the whole process group; somebody else waits for the end."""
        if self.poll() is None:
            _kill_group(self.pid)

    def _stuck(self) -> EmbeddedError:
        return EmbeddedError(
            f"{self.name} (pid {self.pid}) does not end after SIGKILL: it hangs in the kernel, "
            "check the disk under its data directory"
        )

    def _reap(self) -> None:
        _kill_group(self.pid)
        self._popen.wait()


def start_child(
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: Path,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> ChildProcess:
    """Start `argv` with exactly `env`; output is appended to `log_path` (made with mode 0600).

    Must be called on the main thread. EmbeddedError when the program cannot be started.
    """
    if threading.current_thread() is not threading.main_thread():
        raise EmbeddedError(
            f"{name}: start it on the main thread; the kernel kills it when its starting thread ends"
        )
    log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        popen = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,  # message bodies end up in what these processes write
            pass_fds=tuple(pass_fds),
            preexec_fn=_die_with(os.getpid()),  # prctl only: nothing that takes a lock
        )
    except OSError as error:
        raise EmbeddedError(f"{name}: cannot start {argv[0]}: {error.strerror or error}") from error
    finally:
        os.close(log_fd)
    return ChildProcess(name, popen, log_path)


def child_env(
    extra: Mapping[str, str], *, settings: bool = True, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """`extra` on top of the few variables that a child gets from its parent.

    These are PATH, HOME, locale and, with `settings`, QIM_*. Everything else of the parent's environment
    stays out: credentials of other programs among it.
    """
    source = os.environ if inherited is None else inherited
    kept = {
        name: value
        for name, value in source.items()
        if name in _INHERITED_NAMES
        or name.startswith("LC_")
        or (settings and name.startswith(_SETTINGS_PREFIX))
    }
    return kept | dict(extra)


def tail(path: Path, lines_max: int = 20, bytes_max: int = 16_384) -> list[str]:
    """The last lines of a log, at most `lines_max` out of the last `bytes_max`; [] when there is none."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - bytes_max))
            text = stream.read(bytes_max).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines_max:]


def _die_with(parent_pid: int) -> Callable[[], None] | None:
    """What the child runs between fork and exec, or None where the system cannot do it."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork, not after it

    def arm() -> None:
        if prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            os._exit(_ORPHANED_EXIT)
        # The parent may have died before the call above; then nobody would ever send the signal.
        if os.getppid() != parent_pid:
            os._exit(_ORPHANED_EXIT)

    return arm


def _has_ended(pid: int) -> bool:
    """True when the child is a zombie; it stays one, so its number stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped by someone else; Popen.wait settles the code


def _kill_group(pid: int) -> None:
    # Gone already, or only a zombie is left (macOS answers EPERM): both mean there is nothing to kill.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _until_ended(pid: int) -> None:
    """Wait for a child that is not reaped yet (so `pid` is surely its own) without polling."""
    if not hasattr(os, "pidfd_open"):
        with contextlib.suppress(ChildProcessError):  # reaped meanwhile: ended is ended
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    descriptor = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
