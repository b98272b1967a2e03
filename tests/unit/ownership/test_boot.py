"""Boot numbers: one living process per name, numbers that only grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.ownership.boot import Boot


def test_numbers_grow_with_every_boot(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        boot = Boot.take(tmp_path, "writer.node-1.0")
        numbers.append(boot.number)
        boot.release()
    assert numbers == [1, 2, 3]
    assert Boot.take(tmp_path, "writer.node-1.1").number == 1


def test_a_second_process_of_the_same_name_is_refused(tmp_path: Path) -> None:
    boot = Boot.take(tmp_path, "writer.n.0")
    with pytest.raises(ConfigError, match="already running"):
        Boot.take(tmp_path, "writer.n.0")
    boot.release()
    assert Boot.take(tmp_path, "writer.n.0").number == 2


def test_a_killed_process_leaves_the_name_free(tmp_path: Path) -> None:
    """P15: the kernel lets go of the lock however the process died."""
    script = (
        "import sys, time; from pathlib import Path; from qim_streams.ownership.boot import Boot\n"
        f"boot = Boot.take(Path({str(tmp_path)!r}), 'w'); print(boot.number, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        with pytest.raises(ConfigError):
            Boot.take(tmp_path, "w")
    finally:
        child.kill()
        child.wait()
    assert Boot.take(tmp_path, "w").number == 2


def test_a_damaged_number_is_not_guessed(tmp_path: Path) -> None:
    Boot.take(tmp_path, "w").release()
    (tmp_path / "boot" / "w.boot").write_text("seven")
    with pytest.raises(ConfigError, match="expected a number"):
        Boot.take(tmp_path, "w")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: the message stays unproven here")
def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="state_dir"):
        Boot.take(tmp_path, "w")


def test_a_state_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state_dir"):
        Boot.take(tmp_path / "file", "w")
