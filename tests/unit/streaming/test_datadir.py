"""The lock of a data directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.streaming.datadir import LOCK_NAME, DataDirLock


def test_the_second_holder_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    first = DataDirLock(tmp_path / "w", "mailbox-node")
    first.acquire()
    with pytest.raises(ConfigError, match=r"in use by mailbox-node pid \d+.*QIM_WORKER_SLOT"):
        DataDirLock(tmp_path / "w", "mailbox-node").acquire()
    first.release()
    DataDirLock(tmp_path / "w", "other").acquire()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path;"
        "from qim_streams.streaming.datadir import DataDirLock;"
        f"DataDirLock(Path({str(tmp_path)!r}), 'x').acquire(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / LOCK_NAME).exists()
    DataDirLock(tmp_path, "x").acquire()


def test_acquire_twice_is_once(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path, "x")
    lock.acquire()
    lock.acquire()
    lock.release()
    lock.release()
