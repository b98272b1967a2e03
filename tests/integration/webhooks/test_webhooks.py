"""Webhooks over a real stack: an application that fails, a worker that is killed, a ruling before a send; and
results of notifications, from a provider that is here as well.

Scenario H13 as far as endpoints go. Spec: §3, §11.
"""

import asyncio
import json
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from qim_streams.embedded.ports import free_ports
from qim_streams.errors import AdmissionRefused
from qim_streams.notification.webhook import signature
from qim_streams.stack.run import DEMO_TENANT
from qim_streams.webhooks.signature import is_genuine
from tests.integration.scenarios.conftest import Cast
from tests.support.loopback_receiver import LoopbackReceiver, Take
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SECRET = "webhook-secret-" + "s" * 32


class Application(LoopbackReceiver):
    """Takes events, fails now and then, refuses bodies that say "poison", and rules on sends before them."""

    def __init__(self, port: int, draw: random.Random) -> None:
        super().__init__(port)
        self._draw = draw
        self.away, self.failures, self.forged = False, 0, 0
        self.events: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.notified: Counter[tuple[str, str]] = Counter()  # (token, message) -> requests

    def routes(self) -> Mapping[str, Take]:
        """See the base."""
        return {"/events": self._take, "/check": self._rule, "/push": self._notify}

    async def _body(self, request: web.Request) -> Any:
        body = await request.read()
        if not is_genuine(SECRET.encode(), dict(request.headers), body, int(time.time())):
            self.forged += 1
        return json.loads(body)

    async def _take(self, request: web.Request) -> web.Response:
        events = (await self._body(request))["events"]
        if self.away or self._draw.random() < 0.2:
            self.failures += 1
            return web.Response(status=503)
        if any("poison" in event.get("body", "") for event in events):
            return web.Response(status=422)
        self.events += events
        return web.Response(status=204)

    async def _rule(self, request: web.Request) -> web.Response:
        asked = await self._body(request)
        self.asked.append(asked)
        if asked["body"].startswith("rude"):
            return web.json_response({"action": "refuse", "reason": "be kind"})
        if asked["body"].startswith("dull"):
            return web.json_response({"action": "change", "body": asked["body"].replace("dull", "bright")})
        return web.json_response({"action": "allow"})

    async def _notify(self, request: web.Request) -> web.Response:
        """A provider of notifications: what a token begins with says what becomes of it."""
        body = await request.read()
        signed = f"v1={signature(SECRET.encode(), request.headers['x-qim-timestamp'], body)}"
        self.forged += request.headers["x-qim-signature"] != signed
        told = json.loads(body)
        self.notified[told["token"], told["message_id"]] += 1
        return web.Response(status={"dead": 410, "refused": 413}.get(told["token"].split("-")[0], 204))

    def results(self, user_id: str) -> list[dict[str, Any]]:
        """What was told of a user's notifications, each event once, in order."""
        found = {one["id"]: one for one in self.events if one["type"] == "push.result"}
        return [one for one in found.values() if one["user_id"] == user_id]

    def messages(self) -> list[dict[str, Any]]:
        return [one for one in self.events if one["type"] == "message.committed"]


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[StackProcess]:
    """A running `qim up` with an endpoint for everything and another that is asked first."""
    folder = tmp_path_factory.mktemp("webhooks")
    secret, file = folder / "secret", folder / "webhooks.yaml"
    secret.write_text(SECRET)
    file.write_text(f"""
endpoints:
  - name: all
    tenant: {DEMO_TENANT}
    url: http://127.0.0.1:{port}/events
    secret_file: {secret}
    events: [message.committed, membership.changed, presence.changed, push.result]
    batch_max: 8
    timeout_ms: 2000
before_send:
  - {{tenant: {DEMO_TENANT}, url: "http://127.0.0.1:{port}/check", secret_file: {secret}, deadline_ms: 5000}}
""")
    left_out = [word for role in ("archiver", "qsession", "rooms") for word in ("--without", role)]
    latch = folder / "latch"
    latch.mkdir()
    armed = (
        "webhook.delivered:12:kill",  # taken by the application, not committed yet
        "notification.tasks_accepted:1:kill",  # in the queue, not acknowledged yet: read again
    )
    env = {
        "QIM_WEBHOOKS_FILE": str(file),
        "QIM_NOTIFICATION_PROVIDERS": "webhook",
        "QIM_NOTIFICATION_GRACE_MS": "200",
        "QIM_PUSH_WEBHOOK_URL": f"http://127.0.0.1:{port}/push",
        "QIM_PUSH_WEBHOOK_SECRET_FILE": str(secret),
        "QIM_FAILPOINT": ",".join(armed),
        "QIM_FAILPOINT_LATCH": str(latch),
    }
    with StackProcess(folder / "stack", *left_out, env=env) as running:
        yield running
    assert "Unclosed" not in (folder / "stack" / "log" / "gateway.log").read_text()
    for point in armed:
        name = point.split(":")[0]
        assert (latch / f"{name}.spent").exists(), f"nobody was killed at {name}"


@pytest.fixture
async def application(port: int) -> AsyncIterator[Application]:
    seed = secrets.randbelow(1_000_000)
    print(f"seed {seed}")
    made = Application(port, random.Random(seed))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def cast(stack: StackProcess) -> AsyncIterator[Cast]:
    people = Cast(stack, f"w{secrets.token_hex(4)}")
    yield people
    await people.close()


async def test_everything_is_told_in_order_past_failures_and_a_kill(
    stack: StackProcess, application: Application, cast: Cast
) -> None:
    """200 messages in two chats; the application fails now and then, goes away, and its worker dies."""
    ann, ben, cid = cast.people("ann", "ben", "cid")
    client = await ann.online(per_conversation_inflight=32)
    receipts = {}
    for number in range(200):
        if number == 60:
            application.away = True
        if number == 80:
            pid = stack.kill("webhook-all", signal.SIGKILL)
        if number == 140:
            application.away = False
        body = b"poison" if number == 50 else b"%d" % number
        receipts[number] = await client.send(body, to_user_id=(ben if number % 2 else cid).user_id)
    await asyncio.to_thread(stack.wait_restarted, "webhook-all", pid)
    wanted = {receipt.message_id.hex() for number, receipt in receipts.items() if number != 50}
    await eventually(
        lambda: wanted <= {one["message_id"] for one in application.messages()}, 90, "all to be told"
    )
    assert application.failures > 0
    assert application.forged == 0
    told = application.messages()
    assert {one["message_id"] for one in told} == wanted, "the refused one costs itself"
    first_told: dict[str, list[int]] = defaultdict(list)
    seen = set()
    for one in told:
        if one["message_id"] not in seen:  # what follows a crash may be told again
            seen.add(one["message_id"])
            first_told[one["conversation_id"]].append(one["conversation_seq"])
    assert all(numbers == sorted(numbers) for numbers in first_told.values())
    types = {one["type"] for one in application.events}
    assert types == {"message.committed", "membership.changed", "presence.changed"}
    assert any(one["type"] == "presence.changed" and one["online"] for one in application.events)


async def test_results_of_notifications_are_told(application: Application, cast: Cast) -> None:
    """Sent, refused, dead: each notification has one request and one result, past a death of its role."""
    ann, *others = cast.people("ann", "ben", "cid", "dee")
    sender = await ann.online()
    tokens = {}
    for person, kind in zip(others, ("good", "dead", "refused"), strict=True):
        device = await person.online()
        tokens[person.user_id] = f"{kind}-{person.user_id}"
        await device.push.register("webhook", tokens[person.user_id])
        await device.close()

    async def told_at_all() -> bool:
        """Until none of them is taken for online any more."""
        told = {token for token, _ in application.notified}
        for user_id, token in tokens.items():
            if token not in told:
                await sender.send(b"are you away?", to_user_id=user_id)
        return told == set(tokens.values())

    await eventually(told_at_all, 60, "everybody to be away")
    sent = {
        user_id: [(await sender.send(b"hello", to_user_id=user_id)).message_id.hex() for _ in range(8)]
        for user_id in tokens
    }
    good, dead, refused = tokens
    for user_id, outcome in ((good, "sent"), (refused, "failed")):
        wanted = {(message, outcome) for message in sent[user_id]}
        await eventually(
            lambda u=user_id, w=wanted: (
                w <= {(r["message_id"], r["outcome"]) for r in application.results(u)}
            ),
            60,
            f"results of {user_id}",
        )
        assert all(application.notified[tokens[user_id], message] == 1 for message in sent[user_id])
        results = application.results(user_id)
        assert len({one["message_id"] for one in results}) == len(results), "one result each"
        assert [one["at_ms"] for one in results] == sorted(one["at_ms"] for one in results)
    await eventually(lambda: application.results(dead), 60, "the dead token")
    assert {(one["outcome"], one["reason"]) for one in application.results(dead)} == {("dead", "HTTP 410")}
    assert {one["reason"] for one in application.results(refused)} == {"HTTP 413"}
    assert sum(n for (token, _), n in application.notified.items() if token == tokens[dead]) == len(
        application.results(dead)
    )
    assert application.forged == 0


async def test_an_application_rules_before_a_message_is_committed(
    application: Application, cast: Cast
) -> None:
    ann, ben = cast.people("ann", "ben")
    client = await ann.online()
    with pytest.raises(AdmissionRefused, match="be kind"):
        await client.send(b"rude words", to_user_id=ben.user_id)
    await client.send(b"dull words", to_user_id=ben.user_id)
    await client.send(b"plain words", to_user_id=ben.user_id)
    entries = await ben.mailbox(2)
    assert [entry.message.body for entry in entries] == [b"bright words", b"plain words"]
    assert [one["body"] for one in application.asked] == ["rude words", "dull words", "plain words"]


async def test_an_application_that_is_away_does_not_stop_the_chat(cast: Cast) -> None:
    """Nobody listens on its port: `on_failure` says allow."""
    ann, ben = cast.people("ann", "ben")
    await (await ann.online()).send(b"all the same", to_user_id=ben.user_id)
    assert [entry.message.body for entry in await ben.mailbox(1)] == [b"all the same"]


def test_a_wrong_file_is_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "webhooks.yaml").write_text("endpoints: [{name: a}]")
    done = subprocess.run(
        [sys.executable, "-m", "qim_streams.cli", "up", "--state-dir", str(tmp_path / "s")],
        env={"PATH": "/usr/bin:/bin", "QIM_WEBHOOKS_FILE": str(tmp_path / "webhooks.yaml")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "webhooks_file" in done.stderr
    assert "endpoints.0.tenant: Field required" in done.stderr
