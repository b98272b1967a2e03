"""A user's data: exported whole, erased everywhere, and what stays is named (GDPR)."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qim_streams.records import KIND_RECALL
from qim_streams.wire.kinds import from_base64url
from tests.integration.scenarios.conftest import Cast
from tests.support.exposure import in_files
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def qim(cast: Cast, *words: str, code: int = 0) -> str:
    """A command beside the stack."""
    command = [sys.executable, "-m", "qim_streams.cli", *words, "--state-dir", str(cast.stack.state_dir)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=cast.stack.environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr + done.stdout
    return str(done.stdout + done.stderr)


def lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_user_gets_his_data_and_then_is_forgotten(cast: Cast, tmp_path: Path) -> None:
    """Old messages too, past every window; others' stay; devices see the recalls; it may be repeated."""
    ann, ben = cast.people("ann", "ben")
    group, shown = cast.group(), []
    await qim(cast, "group", "create", group, "--user", ben.user_id, "--member", ann.user_id)
    sender, other = await ann.online(), await ben.online(into=shown)
    for number in range(30):
        await sender.send(b"private-%d" % number, conversation_id=group)
    await sender.send(b"private-direct", to_user_id=ben.user_id)
    await other.send(b"not hers", conversation_id=group)
    await eventually(lambda: len(shown) >= 32, 60, "all messages")
    await sender.close()

    out = tmp_path / "export"
    assert "31 messages" in await qim(cast, "user", "export", ann.user_id, str(out))
    bodies = {base64.b64decode(row["body"]) for row in lines(out / "messages.jsonl")}
    assert bodies == {b"private-%d" % number for number in range(30)} | {b"private-direct"}
    assert {row["conversation_id"] for row in lines(out / "conversations.jsonl")} >= {group}
    assert "phone" in json.loads((out / "profile.json").read_text())["devices"]
    assert {path.stat().st_mode & 0o077 for path in out.iterdir()} == {0}
    everything = tmp_path / "everything"
    assert "32 messages" in await qim(cast, "user", "export", ann.user_id, str(everything), "--received")

    said = await qim(cast, "user", "erase", ann.user_id, "--yes")
    assert "31 messages recalled, 1 memberships ended" in said
    kinds: list[int] = []

    async def all_recalled() -> bool:
        kinds[:] = [one.message.kind for one in await ben.mailbox()]
        return kinds.count(KIND_RECALL) == 31

    try:
        await eventually(all_recalled, 120, "a recall of each in ben's mailbox")
    except AssertionError as error:
        raise AssertionError(f"{error}: {kinds}") from None
    history = await qim(cast, "history", group, "--user", ben.user_id, "--all", "--newer", "--json")
    rows = [row for page in history.splitlines() for row in json.loads(page)["messages"]]
    bodies = {from_base64url(row["body"]) for row in rows}
    assert not [body for body in bodies if body.startswith(b"private")]
    assert b"not hers" in bodies
    assert "0 messages recalled, 0 memberships ended" in await qim(
        cast, "user", "erase", ann.user_id, "--yes"
    )
    assert in_files(cast.stack.state_dir / "log", {"private-1"}) == []


async def test_nobody_is_not_erased(cast: Cast, tmp_path: Path) -> None:
    assert "never seen" in await qim(cast, "user", "export", "nobody.ever", str(tmp_path / "x"), code=1)
