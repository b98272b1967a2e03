"""Children with real, tiny processes: logs, exit codes, stopping, and no survivors."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.process import ChildProcess, child_env, start_child, tail
from tests.support.waiting import eventually_sync

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)

POLITE = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
    "print('up', flush=True); time.sleep(60)"
)


def start(tmp_path: Path, code: str) -> ChildProcess:
    return start_child(
        "child", [sys.executable, "-c", code], env=child_env({}), log_path=tmp_path / "log" / "child.log"
    )


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def said_up(child: ChildProcess) -> bool:
    return "up" in tail(child.log_path)


def test_output_goes_to_a_private_log_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert child.wait(20) == 7
    assert sorted(tail(child.log_path)) == ["err", "out"]
    assert child.log_path.stat().st_mode & 0o777 == 0o600
    assert child.stop(1) == child.kill() == 7  # ending an ended child changes nothing


def test_stop_is_sigterm(tmp_path: Path) -> None:
    child = start(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    eventually_sync(lambda: said_up(child))
    assert child.stop(20) == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    child = start(tmp_path, STUBBORN)
    eventually_sync(lambda: said_up(child))
    assert child.stop(0.1) == -signal.SIGKILL


def test_a_paused_child_can_be_stopped_cleanly(tmp_path: Path) -> None:
    child = start(tmp_path, POLITE)
    eventually_sync(lambda: said_up(child))
    child.send_signal(signal.SIGSTOP)
    assert child.stop(20) == 3


async def test_waiting_and_stopping_do_not_block_the_loop(tmp_path: Path) -> None:
    child = start(tmp_path, STUBBORN)
    waiter = asyncio.create_task(child.wait_async())
    await asyncio.to_thread(eventually_sync, lambda: "up" in tail(child.log_path))
    assert not waiter.done()
    assert await child.stop_async(0.1) == -signal.SIGKILL
    assert await waiter == -signal.SIGKILL
    assert await child.wait_async() == -signal.SIGKILL


def test_what_a_child_left_behind_dies_with_it(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    child = start(tmp_path, code)
    assert child.wait(20) == 0
    grandchild = int(tail(child.log_path)[0])
    eventually_sync(lambda: is_gone(grandchild), what="the grandchild ends")


def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    """The kernel's promise that everything else rests on: SIGKILL of the parent leaves no orphan."""
    code = (
        "import sys, time; from pathlib import Path; from qim_streams.embedded.process import *; "
        "child = start_child('c', ['sleep', '60'], env=child_env({}), log_path=Path(sys.argv[1])); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    eventually_sync(lambda: is_gone(pid), what="the child ends")


def test_a_child_is_started_on_the_main_thread_only(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def try_it() -> None:
        try:
            start(tmp_path, "pass")
        except EmbeddedError as error:
            caught.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="ghost: cannot start /no/such/program"):
        start_child("ghost", ["/no/such/program"], env={}, log_path=tmp_path / "log")


def test_a_child_gets_little_of_its_parents_environment() -> None:
    parent = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "QIM_NODE_ID": "n",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PYTHONPATH": "y",
    }
    assert child_env({"A": "1"}, inherited=parent) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "QIM_NODE_ID": "n",
        "A": "1",
    }
    assert child_env({}, settings=False, inherited=parent) == {"PATH": "/bin", "LC_ALL": "C"}
    assert child_env({"PATH": "/mine"}, inherited=parent)["PATH"] == "/mine"


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_text("\n".join(f"line {number}" for number in range(10_000)))
    assert tail(log, lines_max=2) == ["line 9998", "line 9999"]
    assert len(tail(log, lines_max=10_000, bytes_max=100)) < 12
