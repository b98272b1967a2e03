"""Failpoints: armed from the environment or from a file while a process runs; off, they do nothing.

Spec: reliability of §3 to §7.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim_streams import failpoints
from qim_streams.errors import ConfigError
from qim_streams.failpoints import FailpointError
from tests.support.waiting import eventually_sync

POINT, OTHER = "writer.admitted", "mailbox.pushed"
LOOP = f"""
import time
from qim_streams import failpoints
print("runs", flush=True)
for _ in range(3000):
    failpoints.hit("{POINT}")
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_the_nth_hit_acts_and_no_other() -> None:
    failpoints.arm(f"{POINT}:3:raise")
    for _ in range(2):
        failpoints.hit(POINT)
        failpoints.hit(OTHER)
    with pytest.raises(FailpointError):
        failpoints.hit(POINT)
    failpoints.hit(POINT)


def test_a_latch_lets_it_act_once_and_says_who_it_was(tmp_path: Path) -> None:
    for _ in range(2):  # the second one: a process after the first
        failpoints.arm(f"{POINT}:1:raise", str(tmp_path))
        if not (tmp_path / f"{POINT}.spent").exists():
            with pytest.raises(FailpointError):
                failpoints.hit(POINT)
    failpoints.hit(POINT)
    assert (tmp_path / f"{POINT}.spent").read_text() == str(os.getpid())


@pytest.mark.parametrize("spec", ["nobody.knows:1:kill", f"{POINT}:0:kill", f"{POINT}:1:explode", POINT])
def test_a_wrong_spec_is_refused_and_changes_nothing(spec: str) -> None:
    failpoints.arm(f"{OTHER}:1:raise")
    with pytest.raises(ConfigError, match="NAME:NTH:ACTION"):
        failpoints.arm(spec)
    assert failpoints.armed(OTHER)


def replace(path: Path, text: str) -> None:
    """Put a new file at `path`, at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def test_a_running_process_is_armed_by_a_file(tmp_path: Path) -> None:
    """From outside, at any time, also after something that could not be read as one."""
    path = tmp_path / "armed"
    env = {**os.environ, "QIM_FAILPOINT_FILE": str(path)}
    with subprocess.Popen([sys.executable, "-c", LOOP], env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"runs\n"
            replace(path, "nonsense")
            replace(path, f"{POINT}:2:kill\n{tmp_path}\n")
            spent = tmp_path / f"{POINT}.spent"
            eventually_sync(spent.exists, 30.0, "the point to be passed")
            assert process.wait(30.0) == -signal.SIGKILL
            assert int(spent.read_text()) == process.pid
        finally:
            process.kill()


def test_a_process_is_armed_from_its_first_moment(tmp_path: Path) -> None:
    """Points that only a start passes."""
    path = tmp_path / "armed"
    path.write_text(f"{POINT}:1:raise\n{tmp_path}\n")
    hit = f"from qim_streams import failpoints; failpoints.hit('{POINT}')"
    for expected in (1, 0):  # the latch: the second process passes
        env = {**os.environ, "QIM_FAILPOINT_FILE": str(path)}
        ended = subprocess.run([sys.executable, "-c", hit], env=env, capture_output=True, check=False)
        assert ended.returncode == expected, ended.stderr
