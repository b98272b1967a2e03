"""What the kill tests share: stacks, and traffic over them with a verdict at the end.

Tests that need nothing special of their stack use one: what they break heals, and their users and
conversations are their own. They run last, so that no idle stack takes the processor from the others.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic
from tests.support.verdict import start_traffic, verdict_on
from tests.support.watermark_sampler import WatermarkSampler

StartStack = Callable[..., StackProcess]
UnderTraffic = Callable[[StackProcess, Plan], AbstractAsyncContextManager[Traffic]]


def new_seed() -> int:
    """The seed of a run: `QIM_TEST_SEED`, else one that was never used before. Printed by the traffic."""
    return int(os.environ.get("QIM_TEST_SEED") or time.time_ns() % 1_000_000)


@pytest.fixture(scope="module")
def start_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartStack]:
    """Starts a stack that lives as long as the module: `start_stack(name, *args, env=...)`."""
    with ExitStack() as stacks:

        def start(name: str, *args: str, env: Mapping[str, str] | None = None) -> StackProcess:
            directory = tmp_path_factory.mktemp(name) / "stack"
            return stacks.enter_context(StackProcess(directory, *args, env=dict(env or {})))

        yield start


def armed_by(state_dir: Path) -> dict[str, str]:
    """What lets a test arm failpoints in a running stack: by the file `armed` beside its directory."""
    return {"QIM_FAILPOINT_FILE": str(state_dir.parent / "armed")}


@pytest.fixture(scope="session")
def common_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    """One stack for many modules. Redis syncs at every write: what it acknowledged survives its death."""
    directory = tmp_path_factory.mktemp("common") / "stack"
    with StackProcess(directory, "--fsync", "always", env=armed_by(directory)) as stack:
        yield stack
        assert stack.refused_commands() == []  # of Redis, under the roles' user, since its last start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the common stack come last."""
    items.sort(key=lambda item: "common_stack" in getattr(item, "fixturenames", ()))


@pytest.fixture
def under_traffic(tmp_path: Path, figures: dict[str, Any]) -> UnderTraffic:
    """`async with under_traffic(stack, plan) as traffic:` break things inside; judged when it ends."""

    @asynccontextmanager
    async def run(stack: StackProcess, plan: Plan) -> AsyncIterator[Traffic]:
        began_s, traffic = time.monotonic(), start_traffic(stack, plan, tmp_path)
        with WatermarkSampler(stack.client["redis_url"]) as sampler:
            try:
                async with traffic:
                    yield traffic
                    await asyncio.to_thread(stack.wait_all_ready)
                    verdict = await verdict_on(traffic, stack, sampler, tmp_path)
                    figures.update(verdict.figures)
                    figures["problems"] = len(verdict.problems)
                    figures["restarts"] = sum(role.restarts for role in stack.status().roles)
                    figures["run, s"] = round(time.monotonic() - began_s, 1)
            except BaseException:
                print(f"history in {tmp_path}, logs in {stack.state_dir / 'log'}, counts {traffic.counts}")
                raise
        print(figures)
        verdict.check()

    return run
