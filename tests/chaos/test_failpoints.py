"""Every named point of the product dies once by SIGKILL, on itself, at exactly that point, under traffic.

The points are armed in every process of one stack; a latch makes each fire once over all restarts. Traffic
runs until all have fired; a point that never does is named.

T-K2; reliability of §3 to §7.
"""

from pathlib import Path
from typing import Any

import pytest

from qim_streams import failpoints
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.stack import StackProcess
from tests.support.traffic import Plan

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

DEADLINE_S = 300.0
# Which hit of a process's life kills it. The points of one role are staggered, so that it gets somewhere
# between two deaths; a point that only a start passes dies at its first hit.
NTH = {
    "writer.admitted": 120,
    "writer.committed_in_redis": 20,
    "writer.produce_sent": 35,
    "writer.produce_acked": 50,
    "writer.ack_sent": 65,
    "relay.pending_read": 3,
    "relay.pending_appended": 1,
    "fanout.outbox_polled": 30,
    "fanout.membership_pinned": 20,
    "fanout.dispatch_appended_some": 10,
    "fanout.all_appended": 40,
    "mailbox.dispatch_polled": 80,
    "mailbox.bitmap_loaded": 60,
    "mailbox.entries_partial": 20,
    "mailbox.entries_durable": 30,
    "mailbox.progress_marked": 100,
    "mailbox.all_chunks_done": 5,
    "mailbox.watermark_advanced": 50,
    "mailbox.pushed": 40,
    "archiver.batch_partial": 10,
    "archiver.batch_durable": 20,
    "archiver.watermark_published": 30,
    "gateway.auth_ok_sent": 12,
    "gateway.mailbox_batch_partial": 8,
    "gateway.sync_complete_checked": 5,
    "gateway.push_partial": 60,
}


@pytest.fixture(scope="module")
def latch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("latch")


@pytest.fixture(scope="module")
def stack(start_stack: StartStack, latch: Path) -> StackProcess:
    armed = ",".join(f"{name}:{nth}:kill" for name, nth in NTH.items())
    env = {
        "QIM_FAILPOINT": armed,
        "QIM_FAILPOINT_LATCH": str(latch),
        # Few shards and a small write batch: the group of everybody is a large record in each shard.
        "QIM_MAILBOX_SHARDS": "4",
        "QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "3",
    }
    return start_stack("failpoints", "--quick", env=env)


def test_every_name_is_armed() -> None:
    """The list above and the product's own agree."""
    assert NTH.keys() == failpoints.NAMES


async def test_a_kill_at_every_point(
    stack: StackProcess, latch: Path, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-K2: between any two of its steps a process may die, and nothing is lost, doubled or reordered."""

    def missing() -> list[str]:
        return sorted(name for name in NTH if not (latch / f"{name}.spent").exists())

    try:
        async with under_traffic(stack, Plan("points", new_seed(), silent=12)) as traffic:
            await traffic.until(lambda: not missing(), DEADLINE_S, "every point to fire")
            await traffic.more_acks(50)
    finally:
        figures["points fired"] = len(NTH) - len(missing())
        print(f"points that did not fire: {missing()}")
