"""``qim bench`` on a real stack: clean when all is well, clean through a kill, 3 when the wire lies."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.outcome import Outcome, document, lines
from qim_streams.loadgen.run import Target, run_bench
from qim_streams.wire.frames import Frame, PushEvents, SendAck
from tests.support.frame_proxy import FrameProxy, Passage
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

TINY = BenchOptions(
    rate=100, duration_s=2, warm_up_s=0.5, connections=8, users=8, contacts=4, groups=2, drain_s=40
)


async def command(stack: StackProcess, *args: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and output of the command."""
    report = folder / "report.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "qim_streams.cli", "bench", "--state-dir", str(stack.state_dir),
        "--json", str(report), *args, stdout=-1, stderr=-1,
    )  # fmt: skip
    out, err = await process.communicate()
    text = (out + err).decode()
    print(text)
    assert process.returncode is not None
    return process.returncode, json.loads(report.read_text()) if report.exists() else {}, text


async def test_a_small_run_is_clean_and_its_report_complete(
    whole_stack: StackProcess, tmp_path: Path
) -> None:
    code, report, text = await command(
        whole_stack, "--rate", "200", "--duration", "5", "--warm-up", "1", "--connections", "20",
        "--plot", str(tmp_path / "plot.png"), folder=tmp_path,
    )  # fmt: skip
    assert code == 0
    assert report["verdict"] == "clean"
    assert report["sent"] == report["acked"] + report["refused"] > 1_000
    assert report["delivered"] == report["delivered_expected"] == report["acked"]
    assert report["lost"] == report["duplicated_visible"] == report["reordered"] == report["unknown"] == 0
    for name in ("ack_ms", "e2e_ms", "mailboxed_ms"):
        figures = report[name]
        assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    assert report["ack_ms"]["p50"] < report["e2e_ms"]["p50"]
    for role in ("generator", "gateway", "writer", "fanout", "mailbox", "archiver", "broker", "redis"):
        assert report["cpu_us_per_message"][role] > 0
    assert report["rss_mb"]["gateway"] > 10
    assert len(report["series"]) == 5
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "clean" in text


@pytest.mark.parametrize("workload", ["group:6", "mixed", "large"])
async def test_groups_and_offline_members_are_accounted_for(whole_stack: StackProcess, workload: str) -> None:
    name, _, size = workload.partition(":")
    options = replace(TINY, workload=name, group_size=int(size or 0), users=30, offline_checked=22, rate=50)
    outcome = await run(whole_stack, options)
    assert outcome.clean, lines(outcome)
    assert outcome.offline_checked == 22
    assert outcome.verdict.pulled > 0
    assert document(outcome, {})["delivered"] == outcome.verdict.delivered_expected


async def test_json_subprotocol(whole_stack: StackProcess) -> None:
    outcome = await run(whole_stack, replace(TINY, encoding="json"))
    assert outcome.clean, lines(outcome)


async def test_a_run_that_cannot_be_done_says_why(whole_stack: StackProcess, tmp_path: Path) -> None:
    code, _, text = await command(whole_stack, "--rate", "0", folder=tmp_path)
    assert code == 2
    assert "--rate" in text
    code, _, text = await command(
        whole_stack, "--kill", "nobody@0", "--duration", "1", "--connections", "4", folder=tmp_path
    )
    assert code == 2
    assert "--kill nobody" in text


async def run(stack: StackProcess, options: BenchOptions, url: str | None = None) -> Outcome:
    """A run in this process, through `url` when it is given."""
    address = stack.address()
    if url is not None:
        address = replace(address, gateway_url=url)
    target = Target(address, stack.state_dir, stack.client["redis_url"], 16)
    return await run_bench(options, target, None, print)


@pytest.fixture
async def proxy(whole_stack: StackProcess) -> AsyncIterator[FrameProxy]:
    """A proxy in front of the gateway."""
    async with FrameProxy(whole_stack.address().require_url()) as one:
        yield one


class EveryTenth:
    """A rule for pushes: each tenth goes `times` times."""

    def __init__(self, times: int) -> None:
        self.times, self.count = times, 0

    def __call__(self, _: Passage, frame: Frame) -> int:
        """How often a frame is forwarded."""
        if not isinstance(frame, PushEvents):
            return 1
        self.count += 1
        return self.times if self.count % 10 == 0 else 1


async def test_pushes_that_the_wire_drops_are_found_by_reading_back(
    whole_stack: StackProcess, proxy: FrameProxy
) -> None:
    rule = proxy.to_client = EveryTenth(0)
    outcome = await run(whole_stack, replace(TINY, drain_s=3), proxy.url)
    assert rule.count >= 10
    assert outcome.recovered_by_pull > 0
    assert outcome.verdict.lost == 0


async def test_pushes_that_the_wire_repeats_are_counted_and_no_harm(
    whole_stack: StackProcess, proxy: FrameProxy
) -> None:
    proxy.to_client = EveryTenth(2)
    outcome = await run(whole_stack, TINY, proxy.url)
    assert outcome.clean, lines(outcome)
    assert outcome.verdict.duplicated_raw > 0


async def test_a_send_without_an_answer_is_unknown_and_not_clean(
    whole_stack: StackProcess, proxy: FrameProxy
) -> None:
    def no_acks(passage: Passage, frame: Frame) -> int:
        return 0 if passage.number == 3 and isinstance(frame, SendAck) else 1

    proxy.to_client = no_acks
    outcome = await run(whole_stack, replace(TINY, workload="group", group_size=6, drain_s=2), proxy.url)
    assert outcome.verdict.unknown > 0
    assert not outcome.clean
    assert document(outcome, {})["verdict"] == "not clean"


async def test_a_lost_connection_is_survived(whole_stack: StackProcess, proxy: FrameProxy) -> None:
    async def cut() -> None:
        def pushed() -> bool:
            return any(isinstance(frame, PushEvents) for one in proxy.passages for frame in one.to_client)

        await eventually(pushed, 30, "a push")
        await proxy.cut()

    cutter = asyncio.create_task(cut())
    outcome = await run(whole_stack, TINY, proxy.url)
    await cutter
    assert outcome.clean, lines(outcome)
    assert outcome.noted["connections_lost"] > 0
