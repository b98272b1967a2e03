"""A short slice of the kill matrix: one point struck by SIGKILL, one by SIGSTOP, which ones the seed says.

`make chaos` strikes all (``tests.chaos.matrix``). T-K2, T-Z1; I1 to I18. Spec: §3 to §7, §9 to §11.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qim_streams.cli.servers import server_settings
from tests.chaos.conftest import new_seed
from tests.support.stack import StackProcess
from tests.support.strike_lab import StrikeLab
from tests.support.strikes import ACTIONS, POINTS, Strike

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

# What is passed only where a few members are a large record, as on the matrix's own stack.
LARGE = ("mailbox.slice_written", "mailbox.all_chunks_done", "qsession.wide_partial", "qsession.rows_partial")


@pytest.fixture(scope="module")
def lab(common_stack: StackProcess) -> Iterator[StrikeLab]:
    shards = server_settings(common_stack.state_dir)[0].mailbox_shards
    found = StrikeLab(common_stack, common_stack.state_dir.parent / "armed", shards, stand_bys=False)
    yield found
    found.close()


@pytest.mark.parametrize("action", ACTIONS)
async def test_one_strike(lab: StrikeLab, tmp_path: Path, figures: dict[str, Any], action: str) -> None:
    """T-K2: between any two of its steps a process may die or freeze, and every invariant holds after it."""
    seed = new_seed()
    point = random.Random(f"{seed}{action}").choice([name for name in POINTS if name not in LARGE])
    strike = Strike(point, action, seed)
    print(f"{strike.name}, hit {strike.nth}, seed {seed}")
    outcome = await lab.strike(strike, tmp_path)
    figures |= {"strike": strike.name, "fired, s": outcome.fired_s, "back, s": outcome.back_s}
    figures |= outcome.figures | {"problems": len(outcome.problems)}
    shown = "\n".join(outcome.problems[:20])
    assert outcome.outcome == "passed", f"{strike.arms}: {outcome.outcome}; history in {tmp_path}\n{shown}"
