"""Offline push through a whole stack, against providers that speak HTTP/2 over TLS: calls are counted.

The notification role is killed with requests under way, the mailbox role with tasks under way, and the task
log is written a second time: each (user, device, message) gets one notification. H1 H2 H5 H13.
"""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from redis.asyncio import Redis

from qim_streams.client import QimClient
from tests.support.push_servers import Authority, FakeProviders, Reply, Request, apns_error
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

WITHIN_S = 90.0
TASKS = "qim.push-task.v1"
PHONE, TABLET, VENDOR = "ab" * 32, "fcm:tablet-token", "vendor-token"


class Town:
    """A stack whose providers are ours, and its people."""

    def __init__(self, stack: StackProcess, fake: FakeProviders) -> None:
        self.stack, self.fake = stack, fake
        self.address = stack.address()
        self.numbers = itertools.count()

    def client(self, user: str, device: str) -> QimClient:
        """A device of a user."""
        return QimClient(self.address.require_url(), self.address.token(user), device)

    async def register(self, user: str, device: str, provider: str, token: str) -> None:
        """A device that registers and goes."""
        async with self.client(user, device) as client:
            state = await client.push.register(provider, token)
            assert device in {one.device_id for one in state.devices}

    async def say(self, sender: QimClient, user: str, count: int = 1) -> list[str]:
        """Messages to a user; their ids."""
        receipts = [
            await sender.send(b"hello %d" % next(self.numbers), to_user_id=user) for _ in range(count)
        ]
        return [one.message_id.hex() for one in receipts]

    async def until_offline(self, sender: QimClient, user: str, *tokens: str) -> None:
        """Until a message reaches all of the user's devices by notification: none is taken for online."""

        waits_s = itertools.count(2)  # powers of two: how long a notification takes here, nobody knows

        async def all_told() -> bool:
            (message,) = await self.say(sender, user)
            try:
                await self.told([message], tokens, within_s=2 ** next(waits_s))
            except AssertionError:
                return False
            return True

        await eventually(all_told, WITHIN_S, f"{user} to be offline")

    async def told(self, messages: list[str], tokens: tuple[str, ...], within_s: float = WITHIN_S) -> None:
        """Until each token was told of each message at least once."""
        wanted = {(token, message) for token in tokens for message in messages}
        await eventually(
            lambda: wanted <= self.fake.per_message.keys(), within_s, f"{len(wanted)} notifications"
        )

    def counts(self, messages: list[str]) -> Counter[tuple[str, str]]:
        """How many requests there were for these messages."""
        return Counter({key: n for key, n in self.fake.per_message.items() if key[1] in messages})

    async def all_accepted(self) -> None:
        """Until the notification role has read its log to the end as of now."""
        ends = await asyncio.to_thread(self._ends)
        redis = Redis.from_url(self.stack.client["redis_url"])
        try:

            async def there() -> bool:
                at = {p: int(await redis.get(f"{{n:{p}}}:at") or 0) for p in ends}
                return all(at[p] >= end for p, end in ends.items())

            await eventually(there, WITHIN_S, "the task log to be read")
        finally:
            await redis.aclose()

    def _consumer(self) -> Consumer:
        brokers = self.stack.client["brokers"]
        return Consumer({"bootstrap.servers": brokers, "group.id": "test", "enable.auto.commit": False})

    def _ends(self) -> dict[int, int]:
        consumer = self._consumer()
        places = consumer.list_topics(TASKS, timeout=10).topics[TASKS].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(TASKS, p), timeout=10)[1] for p in places}
        consumer.close()
        return ends

    def write_again(self) -> int:
        """Append everything that the task log holds to it once more; how many records."""
        consumer, producer = self._consumer(), Producer({"bootstrap.servers": self.stack.client["brokers"]})
        ends = self._ends()
        consumer.assign([TopicPartition(TASKS, p, 0) for p in ends])
        left = sum(ends.values())
        total = left
        while left > 0:
            for record in consumer.consume(left, timeout=5):
                producer.produce(TASKS, record.value(), record.key(), record.partition())
                left -= 1
        assert producer.flush(20) == 0
        consumer.close()
        return total


def environment(fake: FakeProviders) -> dict[str, str]:
    """The variables of a stack that tells `fake`."""
    given: dict[str, Any] = fake.settings() | {
        "notification_grace_ms": 300,
        "notification_timeout_s": 1,
        "log_level": "INFO",
    }
    return {f"QIM_{name.upper()}": str(value) for name, value in given.items()}


async def test_one_notification_per_device_and_message_whatever_dies(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    async with FakeProviders(Authority(tmp_path)) as fake:
        stack = StackProcess(tmp_path / "stack", env=environment(fake))
        await asyncio.to_thread(stack.start)
        try:
            town = Town(stack, fake)
            async with town.client("ann", "desk") as ann:
                await told_only_while_away(town, ann)
                await killed_with_requests_under_way(town, ann, figures)
                await replayed(town, ann)
                await logged_out(town, ann)
                await token_dies(town, ann)
        except BaseException:
            print(stack.log_ends(40))
            raise
        finally:
            await asyncio.to_thread(stack.stop)


async def told_only_while_away(town: Town, ann: QimClient) -> None:
    """H2 H13: nothing while a device is connected; once per device afterwards, with a badge."""
    await town.register("ben", "tablet", "fcm", TABLET)
    await town.register("cleo", "phone", "webhook", VENDOR)
    async with town.client("ben", "phone") as phone:
        await phone.push.register("apns", PHONE)
        await town.until_offline(ann, "ben", TABLET)  # a session that has just begun counts as one that syncs
        seen = await town.say(ann, "ben", 5)
        await town.told(seen, (TABLET,))
    assert not [key for key in town.fake.per_message if key[0] == PHONE]
    await town.until_offline(ann, "ben", PHONE, TABLET)
    await town.until_offline(ann, "cleo", VENDOR)
    messages = await town.say(ann, "ben", 10)
    await town.told(messages, (PHONE, TABLET))
    assert set(town.counts(messages).values()) == {1}
    await eventually(lambda: badge_is_told(town, ann), WITHIN_S, "a badge")
    assert town.fake.tokens_made == 1


async def badge_is_told(town: Town, ann: QimClient) -> bool:
    """Whether one more message comes with a badge. No notification waits for a count that takes long."""
    (message,) = await town.say(ann, "ben")
    await town.told([message], (PHONE, TABLET))
    told = [one for one in town.fake.requests if (one.token, one.message_id) == (PHONE, message)]
    return any(one.json["aps"].get("badge", 0) > 10 for one in told)


async def killed_with_requests_under_way(town: Town, ann: QimClient, figures: dict[str, Any]) -> None:
    """kill -9 between request and note: at most one request more for each that was under way, with one id."""
    released = asyncio.Event()
    held: list[Request] = []

    async def hold(request: Request) -> Reply | None:
        held.append(request)
        await released.wait()
        return None

    town.fake.script = hold
    messages = await town.say(ann, "ben", 10)
    await eventually(lambda: len(held) >= 5, WITHIN_S, "requests under way")
    old = town.stack.kill("notification")
    under_way = {(one.token, one.message_id) for one in held}
    town.fake.script = lambda request: None
    released.set()
    mailbox = town.stack.kill("mailbox")
    messages += await town.say(ann, "ben", 10)
    await asyncio.to_thread(town.stack.wait_restarted, "notification", old, WITHIN_S)
    await asyncio.to_thread(town.stack.wait_restarted, "mailbox", mailbox, WITHIN_S)
    await town.told(messages, (PHONE, TABLET))
    await eventually(
        lambda: all(town.fake.per_message[key] == 2 for key in under_way), WITHIN_S, "the repeats"
    )
    counts = town.counts(messages)
    assert {key for key, n in counts.items() if n > 1} == under_way
    assert max(counts.values()) == 2
    ids = {(one.token, one.message_id, one.details["notification_id"]) for one in town.fake.requests}
    assert len(ids) == len(town.fake.per_message)
    figures["notifications under way at the kill"] = len(under_way)


async def replayed(town: Town, ann: QimClient) -> None:
    """H1: every task a second and a third time: nothing is sent again."""
    await town.all_accepted()
    before = town.fake.per_message
    assert await asyncio.to_thread(town.write_again) > 20
    assert await asyncio.to_thread(town.write_again) > 40
    await town.all_accepted()
    last = await town.say(ann, "ben", 3)
    await town.told(last, (PHONE, TABLET))
    assert town.fake.per_message - before == town.counts(last)
    assert set(town.counts(last).values()) == {1}


async def logged_out(town: Town, ann: QimClient) -> None:
    """H5: logged out from another device: that one is told no more."""
    async with town.client("ben", "laptop") as laptop:
        state = await laptop.push.unregister("tablet")
        assert [one.device_id for one in state.devices] == ["phone"]
    messages = await town.say(ann, "ben", 5)
    await town.told(messages, (PHONE,))
    assert not [key for key in town.counts(messages) if key[0] == TABLET]


async def token_dies(town: Town, ann: QimClient) -> None:
    """410 Unregistered: one request, then none; the app hears of it when it signs on next."""
    town.fake.script = lambda request: apns_error(410, "Unregistered") if request.token == PHONE else None
    first = await town.say(ann, "ben")
    await town.told(first, (PHONE,))

    async def reported() -> bool:
        async with town.client("ben", "phone") as phone:
            return phone.push.dead_token == "Unregistered"

    await eventually(reported, WITHIN_S, "the dead token to be reported")
    requests = len(town.fake.requests)
    await town.say(ann, "ben", 3)
    told = await town.say(ann, "cleo")
    await town.told(told, (VENDOR,))
    assert len(town.fake.requests) == requests + 1
