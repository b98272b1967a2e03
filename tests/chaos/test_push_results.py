"""Every step from a task to the application's webhook may be the last of its process: nothing is left out.

Messages go to a device that is away, while the roles between them and the application die: notification and
webhook at each of their points, then those two, the mailbox and the gateway at random. Judged by what a
provider and an endpoint on loopback were given: each message one notification and one result; more only for
what a death left in doubt, under the same ids. Afterwards the logs are written a second time.

Spec: §6 (offline), §1 (webhooks). Scenarios H1 H13.
"""

import asyncio
import json
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from confluent_kafka import Consumer, Producer, TopicPartition

from qim_streams.client import QimClient
from qim_streams.embedded.ports import free_ports
from qim_streams.stack.run import DEMO_TENANT
from tests.chaos.conftest import armed_by, new_seed
from tests.support.loopback_receiver import LoopbackReceiver, Take
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(530)]

SECRET = "secret-of-the-webhook-" + "s" * 32
WITHIN_S, AWAY_S = 150.0, 3.0
BETWEEN_S = 0.2  # between two messages
IN_FLIGHT_MAX = 8  # requests under way: what a death may repeat
RANDOM_KILLS = 6
# The order is that of the way; each fires once, at a hit that a busy process comes to.
POINTS = (
    "notification.tasks_accepted",
    "notification.sends_begun",
    "notification.answered",
    "notification.results_appended",
    "notification.settled",
    "webhook.batch_read",
    "webhook.delivered",
    "webhook.batch_told",
)
VICTIMS = ("notification", "webhook-all", "mailbox", "gateway")


class Outside(LoopbackReceiver):
    """The provider and the application: what they were given, in order."""

    def __init__(self, port: int, chance: random.Random) -> None:
        super().__init__(port)
        self._chance = chance
        self.user_id = f"ben-{secrets.token_hex(4)}"  # whose telephone is away
        self.requests: list[tuple[str, str]] = []  # (message, notification)
        self.events: list[dict[str, Any]] = []
        self.fails = 0.1  # of the requests of webhooks

    def routes(self) -> Mapping[str, Take]:
        """See the base."""
        return {"/push": self._push, "/events": self._told}

    async def _push(self, request: web.Request) -> web.Response:
        told = json.loads(await request.read())
        if told["user_id"] == self.user_id:
            self.requests.append((told["message_id"], told["notification_id"]))
        return web.Response(status=204)

    async def _told(self, request: web.Request) -> web.Response:
        events = json.loads(await request.read())["events"]
        if self._chance.random() < self.fails:
            return web.Response(status=503)
        # Whatever an earlier test left to be told is not looked at.
        self.events += [one for one in events if one.get("user_id") == self.user_id]
        return web.Response(status=204)

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """Results by event id, every time that each was told."""
        found = defaultdict(list)
        for one in self.events:
            found[one["id"]].append(one)
        return found

    def told(self) -> set[str]:
        """Messages whose notification was told as sent."""
        return {one["message_id"] for one in self.events if one["outcome"] == "sent"}


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[StackProcess]:
    """A running `qim up` whose notifications and webhooks lead to `Outside`."""
    tmp_path = tmp_path_factory.mktemp("results")
    secret, file, home = tmp_path / "secret", tmp_path / "webhooks.yaml", tmp_path / "s" / "stack"
    secret.write_text(SECRET)
    file.write_text(f"""
endpoints:
  - name: all
    tenant: {DEMO_TENANT}
    url: http://127.0.0.1:{port}/events
    secret_file: {secret}
    events: [message.committed, push.result]
    batch_max: 8
""")
    home.parent.mkdir()
    env = armed_by(home) | {
        "QIM_WEBHOOKS_FILE": str(file),
        "QIM_NOTIFICATION_PROVIDERS": "webhook",
        "QIM_NOTIFICATION_GRACE_MS": "200",
        "QIM_NOTIFICATION_TIMEOUT_S": "1",
        "QIM_NOTIFICATION_IN_FLIGHT_MAX": str(IN_FLIGHT_MAX),
        "QIM_PUSH_WEBHOOK_URL": f"http://127.0.0.1:{port}/push",
        "QIM_PUSH_WEBHOOK_SECRET_FILE": str(secret),
    }
    left_out = [word for role in ("archiver", "qsession", "rooms") for word in ("--without", role)]
    with StackProcess(home, "--fsync", "always", *left_out, env=env) as running:
        yield running


@pytest.fixture
async def outside(port: int) -> AsyncIterator[Outside]:
    seed = new_seed()
    print(f"seed {seed}")
    one = Outside(port, random.Random(seed))
    await one.start()
    yield one
    await one.stop()


class Talk:
    """Ann, who writes to a telephone that is away. Use as an async context manager."""

    def __init__(self, stack: StackProcess, outside: Outside) -> None:
        self._stack, self._outside = stack, outside
        self._address = stack.address()
        self.sent: list[str] = []

    def _client(self, user: str, device: str) -> QimClient:
        return QimClient(self._address.require_url(), self._address.token(user), device)

    async def __aenter__(self) -> "Talk":
        async with self._client(self._outside.user_id, "phone") as phone:
            await phone.push.register("webhook", f"token-{self._outside.user_id}")
        self._ann = self._client("ann", "desk")
        await self._ann.connect(60.0)

        async def away() -> bool:
            # One by one: a flood would still wait for its few requests under way when the test begins.
            await self._ann.send(b"are you away?", to_user_id=self._outside.user_id)
            try:
                await eventually(lambda: self._outside.requests, AWAY_S)
            except AssertionError:
                return False
            return True

        await eventually(away, WITHIN_S, "the telephone to be away")
        self._task = asyncio.create_task(self._talk())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._ann.close()

    async def _talk(self) -> None:
        while True:
            receipt = await self._ann.send(
                b"%d" % len(self.sent), to_user_id=self._outside.user_id, timeout_s=120.0
            )
            self.sent.append(receipt.message_id.hex())
            await asyncio.sleep(BETWEEN_S)

    async def more(self, count: int) -> None:
        """Until so many more messages are committed."""
        goal = len(self.sent) + count
        await eventually(lambda: self._task.done() or len(self.sent) >= goal, WITHIN_S, "more messages")
        if self._task.done():
            self._task.result()


async def test_every_step_from_a_task_to_the_webhook_may_be_the_last(
    stack: StackProcess, outside: Outside, tmp_path: Path, figures: dict[str, Any]
) -> None:
    """H1 H13: notification and webhook roles die at each of their points."""
    chance = random.Random(new_seed())
    deaths = Counter[str]()
    async with Talk(stack, outside) as talk:
        for point in POINTS:
            await talk.more(5)
            await struck(stack, tmp_path, point, chance.randint(1, 4))
            deaths[point.split(".")[0]] += 1
        await talk.more(10)
        sent = set(talk.sent)
    await judged(outside, sent, deaths, figures)


async def test_random_deaths_on_the_way_to_the_webhook(
    stack: StackProcess, outside: Outside, figures: dict[str, Any]
) -> None:
    """H1 H13: one or two of the roles on the way die at any moment."""
    chance = random.Random(new_seed())
    deaths = Counter[str]()
    async with Talk(stack, outside) as talk:
        for _ in range(RANDOM_KILLS):
            await talk.more(chance.randint(1, 15))
            victims = chance.sample(VICTIMS, chance.choice((1, 1, 2)))
            pids = {role: stack.kill(role) for role in victims}
            deaths.update(victims)
            for role, pid in pids.items():
                await asyncio.to_thread(stack.wait_restarted, role, pid, 90.0)
        await talk.more(10)
        sent = set(talk.sent)
    await judged(outside, sent, deaths, figures)


async def test_tasks_and_results_that_come_again_change_nothing(
    stack: StackProcess, outside: Outside, figures: dict[str, Any]
) -> None:
    """H1: both logs a second time: no further request, and nothing told that was not told before."""
    outside.fails = 0.0
    async with Talk(stack, outside) as talk:
        await talk.more(20)
        sent = set(talk.sent)
    await judged(outside, sent, Counter(), figures)
    requests, events = len(outside.requests), set(outside.results())
    told = len(outside.events)
    for topic in ("qim.push-task.v1", "qim.push-result.v1"):
        assert await asyncio.to_thread(write_again, stack.client["brokers"], topic) >= len(sent)
    await eventually(lambda: len(outside.events) >= told + len(events), WITHIN_S, "the results again")
    address = stack.address()
    async with QimClient(address.require_url(), address.token("ann"), "desk") as ann:
        last = (await ann.send(b"the last", to_user_id=outside.user_id)).message_id.hex()
    await eventually(lambda: last in outside.told(), WITHIN_S, "the last one")
    assert len(outside.requests) == requests + 1
    assert len(set(outside.results()) - events) == 1


async def judged(outside: Outside, sent: set[str], deaths: Counter[str], figures: dict[str, Any]) -> None:
    """Wait for the results of all messages, and judge what was given to whom."""
    await eventually(lambda: sent <= outside.told(), WITHIN_S, "every result to be told")
    figures |= {"messages": len(sent), "deaths": dict(deaths)}
    judge(outside, sent, deaths, figures)


async def struck(stack: StackProcess, latch: Path, point: str, nth: int) -> None:
    """Arm a point, see who died at it, and until he is back."""
    armed = Path(armed_by(stack.state_dir)["QIM_FAILPOINT_FILE"])

    def arm() -> None:
        fresh = armed.with_suffix(".new")
        fresh.write_text(f"{point}:{nth}:kill\n{latch}\n")
        fresh.rename(armed)

    await asyncio.to_thread(arm)
    spent = latch / f"{point}.spent"
    await eventually(lambda: spent.exists() and spent.read_text(), WITHIN_S, f"a death at {point}")
    role = "webhook-all" if point.startswith("webhook.") else "notification"
    await asyncio.to_thread(stack.wait_restarted, role, int(spent.read_text()), 90.0)
    await asyncio.to_thread(armed.unlink)


def judge(outside: Outside, sent: set[str], deaths: Counter[str], figures: dict[str, Any]) -> None:
    """Each message one notification and one result; repeats only by deaths, under the same ids."""
    requests = Counter(message for message, _ in outside.requests)
    assert sent <= requests.keys(), f"{len(sent - requests.keys())} messages were not notified"
    ids = set(outside.requests)
    assert len(ids) == len({message for message, _ in ids}), "a repeat came under another id"
    repeats = requests.total() - len(requests)
    assert repeats <= deaths["notification"] * IN_FLIGHT_MAX, f"{repeats} repeats, {deaths}"
    results = outside.results()
    by_message = Counter(told[0]["message_id"] for told in results.values())
    assert max(by_message.values()) == 1, "a notification has two outcomes"
    assert {told[0]["outcome"] for told in results.values()} == {"sent"}
    assert by_message.keys() <= requests.keys(), "a result of what was never asked for"
    for told in results.values():
        without_time = {tuple(sorted((k, str(v)) for k, v in one.items() if k != "at_ms")) for one in told}
        assert len(without_time) == 1, "an id that says two things"
    figures |= {
        "requests repeated": repeats,
        "results told again": sum(map(len, results.values())) - len(results),
    }
    print(figures)


def write_again(brokers: str, topic: str) -> int:
    """Append everything that a log holds to it once more; how many records."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test", "enable.auto.commit": False})
    producer = Producer({"bootstrap.servers": brokers})
    places = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in places}
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    left, deadline = sum(ends.values()), time.monotonic() + 60
    while left > 0 and time.monotonic() < deadline:
        for record in consumer.consume(left, timeout=5):
            producer.produce(topic, record.value(), record.key(), record.partition())
            left -= 1
    assert left == 0
    assert producer.flush(20) == 0
    consumer.close()
    return sum(ends.values())
