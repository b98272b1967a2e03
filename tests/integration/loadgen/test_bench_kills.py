"""``qim bench --kill``: a role dies in the measured part of a run, on a stack of its own. Spec: §14."""

from pathlib import Path

import pytest

from tests.integration.loadgen.test_bench import command
from tests.support.stack import StackProcess

pytestmark = [pytest.mark.integration]


async def test_a_killed_mailbox_role_is_survived(tmp_path: Path) -> None:
    with StackProcess(tmp_path / "stack") as stack:
        code, report, _ = await command(
            stack, "--rate", "100", "--duration", "5", "--warm-up", "1", "--connections", "10",
            "--kill", "mailbox@2", folder=tmp_path,
        )  # fmt: skip
    assert code == 0
    assert [fault["role"] for fault in report["faults"]] == ["mailbox"]
    assert report["e2e_ms"]["max"] > report["ack_ms"]["p50"]
