"""Every role tells the truth about itself while a store or the role itself stands still.

E2, E4 for the other roles, B10; `qim status`. Spec: §11 rule 3, §13.
"""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.stack import StackProcess
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

WITH_REDIS = ("gateway", "writer", "api", "fanout", "mailbox", "archiver", "qsession")
TOLD_S = 60.0


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


@contextmanager
def paused(stack: StackProcess, name: str) -> Iterator[None]:
    """SIGSTOP inside."""
    stack.kill(name, signal.SIGSTOP)
    try:
        yield
    finally:
        stack.kill(name, signal.SIGCONT)


def well(stack: StackProcess) -> bool:
    """All roles are ready and have nothing to say against it."""
    return all(role.state.value == "ready" and not role.reasons for role in stack.status().roles)


def page(stack: StackProcess, name: str) -> tuple[int, dict[str, object]]:
    """/readyz of a role with a port."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{stack.role(name).ports['port']}/readyz", timeout=20
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def test_a_hot_tier_that_stands_still_is_told_by_every_role(stack: StackProcess) -> None:
    """Within seconds, in one form, by page, file and `qim status`; and no more once it is back."""
    eventually_sync(lambda: well(stack), TOLD_S, "all roles to serve")
    for name in ("gateway", "writer", "api"):
        code, said = page(stack, name)
        assert (code, said["ready"], said["reasons"]) == (200, True, [])
    with paused(stack, "redis"):
        missing = set(WITH_REDIS)

        def all_have_told() -> bool:
            for role in stack.status().roles:
                if any("redis" in reason for reason in role.reasons):
                    missing.discard(role.name)
            return not missing

        eventually_sync(all_have_told, TOLD_S, f"{WITH_REDIS} to say that redis is away")
        command = [sys.executable, "-m", "qim_streams.cli", "status", "--state-dir", str(stack.state_dir)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "not serving: redis" in shown
        code, said = page(stack, "gateway")
        assert (code, said["ready"]) == (503, False)
    eventually_sync(lambda: well(stack), 120.0, "all roles to serve again")


def test_a_worker_that_stands_still_is_told(stack: StackProcess) -> None:
    """It cannot say so itself: its silence does."""
    eventually_sync(lambda: well(stack), TOLD_S, "all roles to serve")
    with paused(stack, "qsession"):
        eventually_sync(
            lambda: any("said nothing" in reason for reason in stack.role("qsession").reasons),
            TOLD_S,
            "the silence of a paused worker to be told",
        )
    eventually_sync(lambda: well(stack), 120.0, "all roles to serve again")
