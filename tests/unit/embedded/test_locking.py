"""One holder per directory, named; a dead one is no obstacle."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qim_streams.embedded import files, locking
from qim_streams.embedded.errors import StateDirLockedError
from qim_streams.embedded.locking import DirectoryLock, lock_holder

HOLD = (
    "import sys, time; from pathlib import Path; from qim_streams.embedded.locking import DirectoryLock; "
    "DirectoryLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
)

HOLD_IN_CHILD = (
    "import subprocess, sys, time; from pathlib import Path; "
    "from qim_streams.embedded.locking import DirectoryLock; "
    "lock = DirectoryLock(Path(sys.argv[1])); lock.acquire(); "
    "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, pass_fds=(lock.fileno,)); "
    "print(child.pid, flush=True); time.sleep(60)"
)


def hold(path: Path) -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "stack.lock"
    with hold(path) as holder:
        assert lock_holder(path) == holder.pid
        with pytest.raises(
            StateDirLockedError, match=rf"state is in use by pid {holder.pid}; stop it"
        ) as caught:
            DirectoryLock(path).acquire()
        assert caught.value.pid == holder.pid
        assert "\n" not in str(caught.value)
        holder.kill()
    with DirectoryLock(path) as lock:
        assert lock.held
    assert lock_holder(path) is None


def test_it_can_be_taken_again_after_release(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "lock")
    for _ in range(2):
        lock.acquire()
        assert lock_holder(lock.path) is not None
        lock.release()
        lock.release()
    assert lock_holder(lock.path) is None
    assert lock_holder(tmp_path / "missing") is None


def test_a_child_that_inherits_the_lock_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data stay locked while a server lives whose parent was killed."""
    monkeypatch.setattr(locking, "DEAD_HOLDER_WAIT_S", 0.1)
    path = tmp_path / "owner.lock"
    command = [sys.executable, "-c", HOLD_IN_CHILD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    with pytest.raises(StateDirLockedError):
        DirectoryLock(path).acquire()
    os.kill(child, signal.SIGKILL)
    monkeypatch.undo()
    with DirectoryLock(path) as lock:  # waits until the child's descriptors are closed
        assert lock.held


def test_private_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    files.write_private_json(path, {"a": 1})
    files.write_private_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]
    path.write_text("[1]")
    assert files.read_json(path) is None
    assert files.read_json(tmp_path / "missing") is None
