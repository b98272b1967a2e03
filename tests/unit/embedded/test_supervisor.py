"""The supervisor with real, tiny processes: order, restarts, budget, stop, status, logs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from qim_streams.embedded import restarts, role_runner
from qim_streams.embedded.errors import EmbeddedError, PortInUseError
from qim_streams.embedded.locking import DirectoryLock
from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.roles import RestartPolicy, RoleSpec, RoleState
from qim_streams.embedded.status import LOCK_NAME, STATUS_NAME, RoleStatus, read_status, write_status
from qim_streams.embedded.supervisor import EXIT_FAILED, EXIT_STOPPED, Supervisor
from qim_streams.errors import ConfigError
from tests.support.waiting import eventually

FAST = RestartPolicy(restarts_max=2, window_s=60.0, backoff_first_s=0.01, backoff_last_s=0.02)
SLEEP = ("sleep", "60")


class Recorder:
    """A view that keeps what it was told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, RoleState]] = []
        self.messages: list[str] = []

    def open(self, roles: object) -> None: ...

    def changed(self, role: RoleStatus) -> None:
        self.changes.append((role.name, role.state))

    def tick(self) -> None: ...

    def message(self, text: str) -> None:
        self.messages.append(text)

    def close(self) -> None: ...

    def at(self, name: str, state: RoleState) -> int:
        return self.changes.index((name, state))


@asynccontextmanager
async def running(
    roles: list[RoleSpec], state_dir: Path, view: Recorder | None = None
) -> AsyncIterator[tuple[Supervisor, "asyncio.Task[int]"]]:
    supervisor = Supervisor(roles, state_dir, view=view or Recorder(), policy=FAST)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, task
    finally:
        if not task.done():
            supervisor.request_stop()
            await task


def exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def flag(path: Path) -> Callable[[], bool]:
    return path.exists


async def test_roles_start_in_order_and_stop_backwards(tmp_path: Path) -> None:
    view = Recorder()
    gate = tmp_path / "gate"
    roles = [
        RoleSpec("late", SLEEP, order=2),
        RoleSpec("first", SLEEP, order=1, ready=flag(gate)),
    ]
    async with running(roles, tmp_path, view) as (supervisor, task):
        await eventually(lambda: ("first", RoleState.STARTING) in view.changes)
        assert ("late", RoleState.STARTING) not in view.changes
        gate.touch()
        assert await supervisor.wait_running()
        pids = [status.pid for status in supervisor.statuses]
        assert all(pids)
        supervisor.request_stop()
        assert await task == EXIT_STOPPED
    assert view.at("first", RoleState.READY) < view.at("late", RoleState.STARTING)
    assert view.at("late", RoleState.STOPPED) < view.at("first", RoleState.STOPPING)
    assert not any(exists(pid) for pid in pids)


async def test_a_role_that_dies_comes_back(tmp_path: Path) -> None:
    seen: list[int] = []
    roles = [RoleSpec("worker", SLEEP, exited=seen.append)]
    async with running(roles, tmp_path) as (supervisor, _):
        assert await supervisor.wait_running()
        status = supervisor.statuses[0]
        first = status.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: status.state is RoleState.READY and status.pid not in (None, first))
        assert (status.restarts, status.last_exit, seen) == (1, -signal.SIGKILL, [-signal.SIGKILL])


async def test_a_role_over_its_budget_stops_the_stack_with_its_last_words(tmp_path: Path) -> None:
    view = Recorder()
    dying = RoleSpec("dying", ("sh", "-c", "echo no such table; exit 70"), order=2, ready=lambda: False)
    async with running([RoleSpec("good", SLEEP, order=1), dying], tmp_path, view) as (supervisor, task):
        assert not await supervisor.wait_running()
        assert await task == EXIT_FAILED
    assert supervisor.failure is not None
    assert "role dying ended 3 times within 60 s (last: exit code 70)" in supervisor.failure
    assert "no such table" in supervisor.failure
    assert view.messages == [supervisor.failure]
    assert view.changes.count(("dying", RoleState.STARTING)) == 3
    assert ("good", RoleState.STOPPED) in view.changes
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.alive, status.message) == ("failed", False, supervisor.failure)
    assert {role.name: role.state for role in status.roles}["dying"] is RoleState.FAILED


async def test_a_role_that_is_never_ready_is_killed_at_its_deadline(tmp_path: Path) -> None:
    def broken() -> bool:
        raise RuntimeError("no partitions yet")

    role = RoleSpec("slow", SLEEP, ready=broken, ready_deadline_s=0.1)
    async with running([role], tmp_path) as (supervisor, task):
        assert await task == EXIT_FAILED
    assert supervisor.failure is not None
    assert "not ready within 0 s, last probe: RuntimeError: no partitions yet" in supervisor.failure


async def test_a_wrong_configuration_is_not_waited_for(tmp_path: Path) -> None:
    def mismatch() -> bool:
        raise ConfigError("topic qim.outbox.v1 has 4 partitions instead of 8")

    async with running([RoleSpec("broker", SLEEP, ready=mismatch)], tmp_path) as (supervisor, task):
        assert await task == EXIT_FAILED
    assert supervisor.failure == "role broker: topic qim.outbox.v1 has 4 partitions instead of 8"
    assert supervisor.statuses[0].restarts == 0


async def test_a_program_that_cannot_be_started_is_not_tried_again(tmp_path: Path) -> None:
    async with running([RoleSpec("ghost", ("/no/such/program",))], tmp_path) as (supervisor, task):
        assert await task == EXIT_FAILED
    assert supervisor.failure is not None
    assert "ghost: cannot start /no/such/program" in supervisor.failure


async def test_a_restart_waits_for_lower_roles(tmp_path: Path) -> None:
    """A broker that is down must not use up the restart budgets of its clients."""
    gate = tmp_path / "gate"
    gate.touch()
    roles = [
        RoleSpec("broker", SLEEP, order=1, ready=flag(gate)),
        RoleSpec("client", SLEEP, order=2),
    ]
    async with running(roles, tmp_path) as (supervisor, _):
        assert await supervisor.wait_running()
        broker, client = supervisor.statuses
        gate.unlink()
        for status in (broker, client):
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)
        await eventually(lambda: broker.state is RoleState.STARTING and client.state is RoleState.WAITING)
        assert client.pid is None
        gate.touch()
        await eventually(lambda: client.state is RoleState.READY)
        assert client.restarts == 1


async def test_tcp_and_http_probes(tmp_path: Path) -> None:
    tcp, http = free_ports(2)
    serve = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1")
    roles = [
        RoleSpec("tcp", (*serve, str(tcp)), ports={"port": tcp}, ready=tcp, cwd=tmp_path),
        RoleSpec("http", (*serve, str(http)), ready=f"http://127.0.0.1:{http}/", cwd=tmp_path),
        RoleSpec(
            "gone", (*serve, "0"), ready=f"http://127.0.0.1:{http}/missing", order=200, ready_deadline_s=0.5
        ),
    ]
    async with running(roles, tmp_path) as (supervisor, task):
        assert await task == EXIT_FAILED
    assert supervisor.failure is not None
    assert "last probe: answered 'HTTP/1.0 404" in supervisor.failure


async def test_a_taken_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    view = Recorder()
    supervisor = Supervisor([RoleSpec("gateway", SLEEP, ports={"port": port})], tmp_path, view=view)
    with pytest.raises(PortInUseError, match=f"gateway port: port {port}"):
        await supervisor.run()
    assert view.changes == []
    server.close()


async def test_a_signal_stops_and_a_second_one_kills(tmp_path: Path) -> None:
    stubborn = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    log = tmp_path / "log" / "stubborn.log"

    def up() -> bool:
        return log.exists() and "up" in log.read_text()

    role = RoleSpec("stubborn", stubborn, ready=up, stop_grace_s=600.0)
    async with running([role], tmp_path) as (supervisor, task):
        assert await supervisor.wait_running()
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: supervisor.statuses[0].state is RoleState.STOPPING)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(task, 60) == EXIT_STOPPED
        assert supervisor.statuses[0].last_exit == -signal.SIGKILL


async def test_logs_are_bounded_while_the_role_writes_on(tmp_path: Path) -> None:
    chatty = ("sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done")
    bytes_max = 1_000
    view = Recorder()
    supervisor = Supervisor(
        [RoleSpec("chatty", chatty)], tmp_path, view=view, policy=FAST, log_bytes_max=bytes_max
    )
    task = asyncio.create_task(supervisor.run())
    log = tmp_path / "log" / "chatty.log"
    older = log.with_name("chatty.log.1")
    await eventually(older.exists, what="the log was cut")
    mark = older.stat().st_mtime_ns
    await eventually(lambda: older.stat().st_mtime_ns > mark, what="it was cut again: the role writes on")
    supervisor.request_stop()
    assert await task == EXIT_STOPPED
    assert b"\0" not in log.read_bytes()[:100]  # appended at the new end, no hole in front
    assert sorted(path.name for path in log.parent.iterdir()) == ["chatty.log", "chatty.log.1"]


async def test_stop_before_anything_is_ready(tmp_path: Path) -> None:
    roles = [RoleSpec("a", SLEEP, ready=lambda: False), RoleSpec("b", SLEEP, order=200)]
    async with running(roles, tmp_path) as (supervisor, task):
        await eventually(lambda: supervisor.statuses[0].state is RoleState.STARTING)
        supervisor.request_stop()
        assert await task == EXIT_STOPPED
        assert [status.state for status in supervisor.statuses] == [RoleState.STOPPED] * 2
        assert not await supervisor.wait_running()


# -- restarts that somebody asks for


async def test_a_restart_ends_the_role_cleanly_and_costs_no_budget(tmp_path: Path) -> None:
    """More often than the budget allows deaths; the others go on; each time it is awaited ready again."""
    view, seen = Recorder(), list[int]()
    roles = [RoleSpec("other", SLEEP), RoleSpec("worker", SLEEP, exited=seen.append)]
    async with running(roles, tmp_path, view) as (supervisor, _):
        assert await supervisor.wait_running()
        other, worker = supervisor.statuses
        kept = other.pid
        for _ in range(FAST.restarts_max + 2):
            before = worker.pid
            restarts.ask(tmp_path, "worker")
            restarts.ask(tmp_path, "nobody")
            await eventually(lambda before=before: worker.pid not in (None, before))
            await eventually(lambda: worker.state is RoleState.READY)
            assert not exists(before)
        assert (worker.restarts, other.restarts, other.pid) == (0, 0, kept)
        assert seen == [-signal.SIGTERM] * (FAST.restarts_max + 2)
    assert ("worker", RoleState.BACKOFF) not in view.changes


async def test_requests_of_an_earlier_supervisor_are_dropped(tmp_path: Path) -> None:
    restarts.ask(tmp_path, "worker")
    async with running([RoleSpec("worker", SLEEP)], tmp_path) as (supervisor, _):
        assert await supervisor.wait_running()
        assert restarts.take(tmp_path, ("worker",)) == []


def test_a_request_names_a_role(tmp_path: Path) -> None:
    for name in ("", "../x", "A b"):
        with pytest.raises(EmbeddedError):
            restarts.ask(tmp_path, name)


async def test_the_command_restarts_one_role_after_the_other(tmp_path: Path) -> None:
    """`qim restart all` leaves the servers alone; what cannot be is one line."""
    roles = [RoleSpec("redis", SLEEP, order=0), RoleSpec("writer", SLEEP), RoleSpec("gateway", SLEEP)]

    async def qim(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "qim_streams.cli", "restart", *words, "--state-dir", str(tmp_path)]
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)

    with DirectoryLock(tmp_path / LOCK_NAME):
        async with running(roles, tmp_path) as (supervisor, _):
            assert await supervisor.wait_running()
            before = {status.name: status.pid for status in supervisor.statuses}
            done = await qim("all")
            assert done.returncode == 0, done.stderr
            assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["writer", "gateway"]
            after = {status.name: status.pid for status in supervisor.statuses}
            assert after["redis"] == before["redis"]
            assert not {after["writer"], after["gateway"]} & set(before.values())
            wrong = await qim("nobody")
            assert (wrong.returncode, wrong.stdout) == (1, "")
            assert "no role nobody" in wrong.stderr
    assert "no stack runs" in (await qim("all")).stderr


# -- how roles are that run


async def test_what_a_role_says_of_itself_is_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first moment of READY on; what changes only in a number is no news; a restart forgets it."""
    monkeypatch.setattr(role_runner, "HEALTH_EVERY_S", 0.02)
    view, reasons = Recorder(), ["late"]
    roles = [RoleSpec("worker", SLEEP, health=lambda: list(reasons)), RoleSpec("other", SLEEP)]
    async with running(roles, tmp_path, view) as (supervisor, _):
        assert await supervisor.wait_running()
        worker, other = supervisor.statuses
        assert (worker.state, worker.reasons, other.reasons) == (RoleState.READY, ["late"], [])
        reasons[:] = ["redis has not answered for 5 s"]
        await eventually(lambda: worker.reasons == reasons)
        told = view.changes.count(("worker", RoleState.READY))
        written = read_status(tmp_path)
        assert written is not None
        assert {role.name: role.reasons for role in written.roles} == {"worker": reasons, "other": []}
        reasons[:] = ["redis has not answered for 6 s"]
        await asyncio.sleep(0.1)
        assert view.changes.count(("worker", RoleState.READY)) == told
        reasons.clear()
        await eventually(lambda: worker.reasons == [])


def test_a_status_of_before_reasons_is_read(tmp_path: Path) -> None:
    role = RoleStatus("worker", RoleState.READY, 1, {})
    write_status(tmp_path, pid=1, state="running", now_ms=0, roles=[role])
    path = tmp_path / STATUS_NAME
    document = json.loads(path.read_text())
    del document["roles"][0]["reasons"]
    path.write_text(json.dumps(document))
    read = read_status(tmp_path)
    assert read is not None
    assert read.roles == [role]
