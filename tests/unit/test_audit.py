"""``make audit`` with a pip-audit of our own: what was not looked at is not taken for good."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLEAN = "No known vulnerabilities found"
WEAK = "Found 1 known vulnerability in 1 package"
UNKNOWN = "ERROR:pip_audit._cli:aiohttp: Dependency not found on PyPI and could not be audited: aiohttp (1)"
AWAY = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev', port=443): Max retries"


def audited(folder: Path, says: str, code: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the target with environments that are ready and a pip-audit of our own."""
    tools, venv = folder / "tools", folder / "venv"
    (tools / "bin").mkdir(parents=True)
    venv.mkdir()
    program = tools / "bin" / "pip-audit"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\necho "{says}"\nexit {code}\n')
    program.chmod(0o755)
    for ready in (tools / ".ready", venv / ".ready"):
        ready.touch()
    return subprocess.run(
        [
            "make",
            "-C",
            str(ROOT),
            "--no-print-directory",
            "audit",
            f"TOOLS={tools}",
            f"VENV={venv}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("says", "code"), [(CLEAN, 0), (WEAK, 1)])
def test_an_answer_is_passed_on(tmp_path: Path, says: str, code: int) -> None:
    done = audited(tmp_path, says, code)
    assert (done.returncode != 0) == (code != 0)
    assert says in done.stdout
    assert "NOTHING WAS AUDITED" not in done.stdout
    assert "--strict" in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize(("says", "code"), [(UNKNOWN, 0), (UNKNOWN, 1), (AWAY, 1)])
def test_no_answer_is_a_failure_that_says_what_to_do(tmp_path: Path, says: str, code: int) -> None:
    """pip-audit itself ends well when it could ask for nothing."""
    done = audited(tmp_path, says, code, "ARGS=-s osv")
    assert done.returncode != 0
    assert "NOTHING WAS AUDITED" in done.stdout
    assert "api.osv.dev" in done.stdout
    assert "-s osv" in (tmp_path / "arguments").read_text()
