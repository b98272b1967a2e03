"""A backup of a stack that is in use, restored into empty servers: held against what people had read.

The long form: it starts two stacks, one after the other.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from qim_streams.client import ClientOptions, Delivery, QimClient, SqliteStore
from qim_streams.client.discovery import StackAddress
from qim_streams.wire.frames import Event
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(500)]
PEOPLE = ("ann", "ben", "cid")
LEFT_OUT = 500


class Desk:
    """Commands of an operator and of users beside a stack."""

    def __init__(self, stack: StackProcess) -> None:
        self.stack = stack

    def qim(self, *words: str) -> str:
        """The output of a command; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "qim_streams.cli", *words, "--state-dir", str(self.stack.state_dir)],
            env=self.stack.environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def history(self, user: str, *where: str) -> dict[int, dict[str, Any]]:
        """Every message that a user may read, by its number."""
        pages = self.qim("history", *where, "--user", user, "--all", "--newer", "--json").splitlines()
        rows = [row for page in pages for row in json.loads(page)["messages"]]
        return {row["conversation_seq"]: row for row in rows}

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the admin API."""
        client = self.stack.client
        request = urllib.request.Request(
            f"{client['admin_url']}/v1/tenants/{client['tenant']}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-Api-Key": client["admin_api_key"], "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


async def device(address: StackAddress, user: str, store: Path, given: list[Delivery]) -> QimClient:
    """A device with a store that outlives it."""
    client = QimClient(
        address.require_url(),
        address.token(user),
        "phone",
        options=ClientOptions(first_sync="mailbox"),
        store=SqliteStore(store),
        on_deliveries=given.extend,
    )
    await client.connect(60)
    return client


def bodies(given: list[Delivery]) -> list[bytes]:
    """Messages that a device was given."""
    return [one.message.body for one in given if isinstance(one, Event) and one.message.kind == 0]


async def fill(desk: Desk, ben_store: Path) -> None:
    """Messages, edits, recalls, marks, a room and a rule."""
    address = desk.stack.address()
    desk.qim("group", "create", "team", "--user", "ann", "--member", "ben", "--member", "cid")
    desk.qim("group", "create", "old", "--user", "cid", "--member", "ann")
    desk.qim("room", "create", "stage", "--user", "cid")
    desk.admin("PUT", "rules", {"fanout_per_s": 12_345, "multi_login": "newest"})
    given: list[Delivery] = []
    ben = await device(address, "ben", ben_store, given)
    ann = await device(address, "ann", ben_store.with_name("ann.db"), [])
    receipts = [await ann.send(b"t%d" % n, conversation_id="team") for n in range(60)]
    await asyncio.gather(*(ann.send(b"d%d" % n, to_user_id="ben") for n in range(20)))
    await asyncio.gather(*(ann.send(b"o%d" % n, conversation_id="old") for n in range(5)))
    await ann.edit("team", receipts[3].conversation_seq, b"edited")
    await ann.recall("team", receipts[4].conversation_seq)
    await ben.sessions.mark_read("team", receipts[40].conversation_seq)
    await ben.sessions.set_mute("team", True)
    await ben.sessions.set_pin("team", True)
    await eventually(lambda: len(bodies(given)) >= 80, 60, "ben to have everything")
    await ben.close()
    await ann.close()


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """A command to its end."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def restored(taken: Path, folder: Path) -> Path:
    """The state directory of a second stack with the backup in it; it takes no other one."""
    second = folder / "second" / "stack"
    second.mkdir(parents=True)
    shutil.copy(folder / "first" / "stack" / "secrets.json", second)
    words = ["restore", str(taken), "--state-dir", str(second), "--left-out", str(LEFT_OUT)]
    command = [sys.executable, "-m", "qim_streams.cli", *words]
    done = run(command)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "and 0 records that it lacked" not in done.stdout
    again = run(command)
    assert again.returncode == 1
    assert "not empty" in again.stderr
    return second


async def check_old_device(address: StackAddress, ben_store: Path, last_seq: int) -> None:
    """Ben's device of before the backup gets what is new and nothing that it has; numbers are new, too."""
    given: list[Delivery] = []
    ben = await device(address, "ben", ben_store, given)
    ann = await device(address, "ann", ben_store.with_name("ann3.db"), [])
    receipt = await ann.send(b"new", conversation_id="team")
    assert receipt.conversation_seq > last_seq
    await eventually(lambda: b"new" in bodies(given), 120, "ben to be given the new message")
    seen = bodies(given)
    assert len(seen) == len(set(seen))
    assert not set(seen) & {b"t%d" % n for n in range(60)}  # he had those before
    await ben.close()
    await ann.close()


async def test_a_backup_brings_back_what_people_had(tmp_path: Path) -> None:
    """Everything acknowledged before the backup, marks, members, rooms and rules; numbers go on above all
    that were ever given out; a device of before rebuilds and is given nothing twice."""
    taken, ben_store = tmp_path / "backup", tmp_path / "ben.db"
    with StackProcess(tmp_path / "first" / "stack") as stack:
        desk = Desk(stack)
        await fill(desk, ben_store)
        stack.kill("archiver", signal.SIGSTOP)  # from here on the Outbox alone has what is said
        held = await device(stack.address(), "ann", tmp_path / "ann1.db", [])
        for number in range(10):
            await held.send(b"held%d" % number, conversation_id="team")
        await held.edit("team", 10, b"held edit")
        await held.send(b"new", to_user_id="cid")  # in nobody's durable list yet
        await held.close()
        before = {user: desk.history(user, "team") for user in PEOPLE}
        direct, old = desk.history("ben", "--with", "ann"), desk.history("cid", "old")
        listed = json.loads(desk.qim("sessions", "list", "--user", "ben", "--json"))
        cids = json.loads(desk.qim("sessions", "list", "--user", "cid", "--json"))["rows"]
        listed_of_cid = {row["conversation_id"] for row in cids}
        assert len(listed_of_cid) == 3
        members = desk.qim("group", "show", "team", "--user", "ann")
        address = stack.address()
        ann = await device(address, "ann", tmp_path / "ann2.db", [])

        async def go_on() -> None:
            for number in range(100):
                await ann.send(b"later%d" % number, conversation_id="team")

        talking = asyncio.create_task(go_on())
        await asyncio.to_thread(desk.qim, "backup", str(taken))
        await talking
        await ann.close()
        stack.kill("archiver", signal.SIGCONT)
        after = desk.history("ben", "team")
    assert len(before["ben"]) >= 60

    second = restored(taken, tmp_path)
    with StackProcess(second) as stack:
        desk = Desk(stack)
        stack.wait_all_ready()
        for user in PEOPLE:
            found = desk.history(user, "team")
            assert {seq: found.get(seq) for seq in before[user]} == before[user]
            assert all(after[seq] == row for seq, row in found.items() if user == "ben")
        assert desk.history("ben", "--with", "ann") == direct
        assert desk.history("cid", "old") == old
        rows = {
            row["conversation_id"]: row
            for row in json.loads(desk.qim("sessions", "list", "--user", "ben", "--json"))["rows"]
        }
        for row in listed["rows"]:
            marks = ("read_seq", "muted", "pinned_at")
            assert {name: rows[row["conversation_id"]][name] for name in marks} == {
                name: row[name] for name in marks
            }
        new = json.loads(desk.qim("sessions", "list", "--user", "cid", "--json"))["rows"]
        assert {row["conversation_id"] for row in new} == listed_of_cid
        assert desk.qim("group", "show", "team", "--user", "ann") == members
        assert desk.admin("GET", "rules") == {"fanout_per_s": 12_345, "multi_login": "newest"}
        assert desk.admin("GET", "rooms/stage")["owner"] == "cid"

        await check_old_device(stack.address(), ben_store, max(after))
        assert stack.refused_commands() == []
