"""Two components die in the same moment, every pair of them: roles with roles, roles with the servers below
them, and the two servers. A piece is all pairs of one component with those named behind it.

T-K4; promises P1 to P11, P15. Spec: §3 to §7, §11.
"""

from itertools import combinations, groupby
from typing import Any

import pytest

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.chaos.test_kill_roles import ROLES
from tests.support.killing import Killer
from tests.support.stack import StackProcess
from tests.support.traffic import Plan

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

SERVERS = ("redis", "kafka")
PAIRS = {
    first: [second for _, second in pairs]
    for first, pairs in groupby(combinations((*ROLES, *SERVERS), 2), lambda pair: pair[0])
}
ACKS_S = 120.0  # a broker that died is away for some seconds, and what waits for it, too


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


def test_every_pair_is_there() -> None:
    """Each two of the nine, once."""
    found = [frozenset((first, second)) for first, seconds in PAIRS.items() for second in seconds]
    assert len(found) == len(set(found)) == 36


@pytest.mark.parametrize("first", PAIRS)
async def test_pairs_are_killed_together(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any], first: str
) -> None:
    """T-K4: nothing is lost, doubled or out of order, and messages flow again after each pair.

    Two roles cost nobody else its life; whoever hangs on a server that dies may have to end, too.
    """
    killer = Killer(stack)
    async with under_traffic(stack, Plan(f"with-{first}", new_seed(), rate=30.0)) as traffic:
        await traffic.more_acks(50)
        for second in PAIRS[first]:
            if second == SERVERS[0]:
                killer.check_no_other_deaths()
            figures[f"with {second}, back, s"] = await killer.together((first, second))
            await traffic.more_acks(30, ACKS_S)
