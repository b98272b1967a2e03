"""Slow clients are shown out by their deadlines, and cost the others nothing. T-X1; P16, P17."""

import asyncio
from typing import Any

import pytest

from tests.integration.hostile.siege import KINDS, Siege, wait_over
from tests.support.battlefield import GROWTH_MAX, Battlefield
from tests.support.honest import Honest
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

DEADLINE_S = 10.0  # of both servers; a busy machine may be late
PATIENCE_S = 90.0


async def test_everybody_who_is_slow_is_shown_out(field: Battlefield, honest: Honest, siege: Siege) -> None:
    """Those who came with the first test of this directory: of every kind nobody is left."""
    assert {one.kind for one in siege.attempts} == set(KINDS)
    assert await asyncio.to_thread(wait_over, siege, PATIENCE_S) == {}
    assert field.growth("gateway") < GROWTH_MAX


@pytest.mark.slow
async def test_two_thousand_slow_clients(field: Battlefield, figures: dict[str, Any]) -> None:
    """T-X1 whole: a byte per five seconds. Honest latencies before and during: figures, and a wide bound."""
    async with Honest(field, per_s=50) as honest:
        await eventually(lambda: honest.sent >= 1_000, 120, "the control run")
        control = honest.quantile_ms(0.99)
        crowd = Siege(field.ports, 2_000 // len(KINDS), 5.0)
        siege = await asyncio.to_thread(crowd.__enter__)
        try:
            since = honest.sent  # eight seconds: before the first deadline
            await eventually(lambda: honest.sent >= since + 400, 120, "the honest to go on")
            during = honest.quantile_ms(0.99, since)
            left = await asyncio.to_thread(wait_over, siege, PATIENCE_S)
        finally:
            await asyncio.to_thread(siege.__exit__)
    figures |= {
        "slow connections": len(siege.attempts),
        "honest P99 before, ms": control,
        "honest P99 during, ms": during,
        "gateway grew, MB": round(field.growth("gateway") / 2**20, 1),
        "API grew, MB": round(field.growth("api") / 2**20, 1),
    }
    print(figures)
    assert left == {}
    assert during <= 5 * control + 100
