"""One command owns everything it started: it dies with it, stops with it, and says in a line why it cannot.

Also: two stacks on one machine know nothing of each other. Spec: §1; architecture, processes.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import processes_of
from tests.support.stack import StackProcess
from tests.support.waiting import eventually_sync
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(400)]

REFUSED_S = 120.0


async def talk(stack: StackProcess, text: str) -> None:
    """A message from ann to ben, and ben's mailbox holds exactly what was said in this stack."""
    address = stack.address()
    url = address.require_url()
    async with (
        WireClient(url, address.token("ann"), "phone") as ann,
        WireClient(url, address.token("ben"), "phone") as ben,
    ):
        await ben.go_online()
        await ann.go_online()
        ack = await ann.say(text, text.encode(), to="ben")
        assert ack.conversation_seq == 1, "another stack's message is in this one"
        pushed = await ben.take(object, lambda frame: bool(getattr(frame, "events", None)))  # type: ignore[type-abstract]
        assert [event.message.body for event in pushed.events] == [text.encode()]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StackProcess, StackProcess]]:
    """Two stacks that know nothing of each other, started at the same moment."""
    first, second = (StackProcess(tmp_path_factory.mktemp(name) / "stack") for name in ("a", "b"))
    try:
        starts = [threading.Thread(target=stack.start) for stack in (first, second)]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        yield first, second
    finally:
        for stack in (first, second):
            stack.end()


def run_up(state_dir: Path, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """`qim up` that is expected to give up."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
    return subprocess.run(
        [sys.executable, "-m", "qim_streams.cli", "up", "--state-dir", str(state_dir), *args],
        env=passed | env,
        capture_output=True,
        text=True,
        timeout=REFUSED_S,
        check=False,
    )


def one_line_about(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """The last line names the cause, and nothing looks like a crash of ours."""
    said = (done.stdout + done.stderr).strip()
    assert done.returncode != 0, said
    assert "Traceback" not in said, said
    last = said.splitlines()[-1]
    assert all(word in last for word in words), last


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    """The port, in one line, before anything runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        one_line_about(run_up(tmp_path / "stack", "--quick", QIM_GATEWAY_PORT=port), port, "gateway")
    assert not processes_of(tmp_path)


def test_a_dead_external_broker_is_named(tmp_path: Path) -> None:
    """The address, in one line, in bounded time."""
    began_s = time.monotonic()
    one_line_about(run_up(tmp_path / "stack", "--broker", "127.0.0.1:9"), "127.0.0.1:9")
    assert time.monotonic() - began_s < REFUSED_S
    assert not processes_of(tmp_path)


def test_a_second_stack_in_the_same_directory_is_refused(pair: tuple[StackProcess, StackProcess]) -> None:
    """The directory belongs to one stack; the second is told which process has it."""
    stack, _ = pair
    one_line_about(run_up(stack.state_dir), str(stack.pid))
    assert stack.status().state == "running"


async def test_two_stacks_one_is_killed_the_other_interrupted(
    pair: tuple[StackProcess, StackProcess],
) -> None:
    """Side by side; SIGKILL of a supervisor leaves no process behind; Ctrl-C ends the other with exit 0."""
    killed, interrupted = pair
    await talk(killed, "to-a")
    os.kill(killed.pid, signal.SIGKILL)
    eventually_sync(lambda: not processes_of(killed.state_dir), 20, f"no orphans of {killed.state_dir}")
    await talk(interrupted, "to-b")
    assert len(processes_of(interrupted.state_dir)) >= 8, "supervisor, two servers, six roles"
    os.kill(interrupted.pid, signal.SIGINT)
    assert interrupted.exit_code(within_s=60) == 0
    assert not processes_of(interrupted.state_dir)
    assert not (interrupted.state_dir / "client.json").exists()
