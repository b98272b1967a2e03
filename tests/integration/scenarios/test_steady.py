"""The workload of the kill tests on a stack that nobody breaks: the same verdict, and nothing done twice.

D13, F1, G2 in passing. Spec: §2 to §7.
"""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import StackProcess
from tests.support.traffic import Plan
from tests.support.verdict import start_traffic, verdict_on
from tests.support.watermark_sampler import WatermarkSampler

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ACKS = 300


async def test_a_quiet_stack_does_nothing_twice(
    whole_stack: StackProcess, tmp_path: Path, figures: dict[str, Any]
) -> None:
    """No fault: one Outbox record per message, no restart, every answer, every mailbox exact."""
    seed = secrets.randbelow(1_000_000)
    plan = Plan(f"steady{seed}", seed)
    before = [role.restarts for role in whole_stack.status().roles]
    with WatermarkSampler(whole_stack.client["redis_url"]) as sampler:
        async with start_traffic(whole_stack, plan, tmp_path) as traffic:
            await traffic.more_acks(ACKS)
            verdict = await verdict_on(traffic, whole_stack, sampler, tmp_path)
    figures |= verdict.figures | {"problems": len(verdict.problems)}
    print(verdict.figures)
    verdict.check()
    assert verdict.figures["Outbox copies"] == 0
    assert sampler.skipped == 0
    assert traffic.counts["probes_failed"] == 0
    assert [role.restarts for role in whole_stack.status().roles] == before
