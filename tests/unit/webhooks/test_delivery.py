"""Delivery: in order per key, at least once, past events that are refused, and to nobody else's tenant."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from qim_streams.errors import EndpointUnavailable, RecordError
from qim_streams.log_ports import LogRecord, Poison
from qim_streams.webhooks.delivery import Meaning, WebhookDelivery, meaning_of
from qim_streams.webhooks.endpoints import Endpoint
from qim_streams.webhooks.events import Event
from qim_streams.webhooks.ports import Answer
from qim_streams.webhooks.signature import is_genuine
from tests.support.shard_world import Batch, Record

SECRET = "s" * 40


def batch(*keys: str, begin: int = 0) -> Batch:
    """Records whose value names tenant and key: "acme:a"."""
    return Batch(3, [Record(begin + n, None, key.encode()) for n, key in enumerate(keys)], begin - 1)


def read(record: LogRecord) -> Event | None:
    assert record.value is not None
    text = record.value.decode()
    if text == "poison":
        raise RecordError("no event")
    if text == "nothing":
        return None
    tenant, key = text.split(":")
    return Event(f"id-{record.offset}", "test", tenant, key, {"n": record.offset, "key": key})


class Scripted:
    """An endpoint that answers what a function says, and keeps what it took."""

    def __init__(self, answer: Callable[[list[int]], Answer | Exception] = lambda _: Answer(200)) -> None:
        self.answer, self.requests, self.taken = answer, list[list[int]](), list[tuple[str, int]]()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        assert is_genuine(SECRET.encode(), dict(headers), body, 5)
        await asyncio.sleep(0)
        events = json.loads(body)["events"]
        numbers = [event["n"] for event in events]
        self.requests.append(numbers)
        answer = self.answer(numbers)
        if isinstance(answer, Exception):
            raise answer
        if answer.status == 200:
            self.taken += [(event["key"], event["n"]) for event in events]
        return answer

    async def close(self) -> None:
        pass


class Letters:
    def __init__(self) -> None:
        self.sent: list[Poison] = []

    async def send(self, poison: Sequence[Poison]) -> None:
        self.sent += poison


class World:
    """A delivery with its surroundings; `now` is the clock, seconds."""

    def __init__(self, tmp_path: Path, endpoint: Scripted, **fields: object) -> None:
        secret = tmp_path / "secret"
        secret.write_text(SECRET)
        entry = Endpoint.model_validate(
            {"name": "crm", "tenant": "acme", "url": "https://e/", "secret_file": secret} | fields
        )
        self.now, self.letters = 0.0, Letters()
        self.delivery = WebhookDelivery(
            "t", entry, read, poster=endpoint, poison=self.letters,
            now_ms=lambda: 5_000, monotonic=lambda: self.now,
        )  # fmt: skip


async def test_events_of_a_key_come_in_order_and_only_those_of_the_tenant(tmp_path: Path) -> None:
    draw = random.Random(7)
    kinds = ["acme:a", "acme:b", "acme:c", "other:a", "nothing", "poison"]
    keys = [draw.choice(kinds) for _ in range(300)]
    endpoint = Scripted()
    await World(tmp_path, endpoint, batch_max=7).delivery.handle(batch(*keys))
    expected = [(key.split(":")[1], n) for n, key in enumerate(keys) if key.startswith("acme")]
    assert sorted(endpoint.taken) == sorted(expected)
    for key in "abc":
        assert [n for k, n in endpoint.taken if k == key] == [n for k, n in expected if k == key]
    assert max(map(len, endpoint.requests)) <= 7


async def test_what_was_taken_is_not_told_again_when_the_batch_is_repeated(tmp_path: Path) -> None:
    refusing = {5}
    endpoint = Scripted(lambda numbers: Answer(503) if refusing & set(numbers) else Answer(200))
    world = World(tmp_path, endpoint, batch_max=2, parallel=1)
    events = batch(*["acme:a"] * 8)
    for _ in range(3):
        with pytest.raises(EndpointUnavailable, match="webhook crm: status 503"):
            await world.delivery.handle(events)
    refusing.clear()
    await world.delivery.handle(events)
    assert [n for _, n in endpoint.taken] == list(range(8))
    assert endpoint.requests.count([4, 5]) == 4
    assert endpoint.requests.count([0, 1]) == 1


async def test_no_answer_is_not_yet(tmp_path: Path) -> None:
    answers: list[Answer | Exception] = [EndpointUnavailable("no answer within 1 s"), Answer(204)]
    endpoint = Scripted(lambda _: answers.pop(0))
    world = World(tmp_path, endpoint)
    with pytest.raises(EndpointUnavailable, match="no answer"):
        await world.delivery.handle(batch("acme:a"))
    await world.delivery.handle(batch("acme:a"))
    assert endpoint.requests == [[0], [0]]


async def test_an_event_that_is_refused_costs_itself(tmp_path: Path) -> None:
    endpoint = Scripted(lambda numbers: Answer(400) if 11 in numbers else Answer(200))
    world = World(tmp_path, endpoint, parallel=1)
    await world.delivery.handle(batch(*["acme:a"] * 20))
    assert [n for _, n in endpoint.taken] == [n for n in range(20) if n != 11]
    assert [(one.partition, one.record.offset) for one in world.letters.sent] == [(3, 11)]
    assert "refused: status 400" in world.letters.sent[0].cause


async def test_patience_ends_in_the_dead_letters(tmp_path: Path) -> None:
    endpoint = Scripted(lambda _: Answer(500))
    world = World(tmp_path, endpoint, retry_for_s=60)
    for world.now in (0.0, 30.0, 59.0):
        with pytest.raises(EndpointUnavailable):
            await world.delivery.handle(batch("acme:a", "acme:a"))
    world.now = 61.0
    await world.delivery.handle(batch("acme:a", "acme:a"))
    assert [one.record.offset for one in world.letters.sent] == [0, 1]
    with pytest.raises(EndpointUnavailable):  # the next batch has its own patience
        await world.delivery.handle(batch("acme:a", begin=2))


async def test_an_endpoint_that_asks_for_a_rest_gets_it(tmp_path: Path) -> None:
    endpoint = Scripted(lambda _: Answer(429, retry_after_s=100.0) if world.now == 0 else Answer(200))
    world = World(tmp_path, endpoint)
    with pytest.raises(EndpointUnavailable):
        await world.delivery.handle(batch("acme:a"))
    world.now = 101.0
    await world.delivery.handle(batch("acme:a"))
    assert endpoint.requests == [[0], [0]]


async def test_a_request_stays_below_its_bytes(tmp_path: Path) -> None:
    big = "x" * 400_000
    endpoint = Scripted()
    await World(tmp_path, endpoint, parallel=1).delivery.handle(batch(*[f"acme:{big}"] * 5))
    assert len(endpoint.taken) == 5
    assert max(map(len, endpoint.requests)) <= 2


async def test_an_unforeseen_error_is_not_taken_for_an_outage(tmp_path: Path) -> None:
    world = World(tmp_path, Scripted(lambda _: ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await world.delivery.handle(batch("acme:a"))


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(200, Meaning.TAKEN), (204, Meaning.TAKEN), (302, Meaning.REFUSED), (400, Meaning.REFUSED),
     (404, Meaning.REFUSED), (410, Meaning.REFUSED), (408, Meaning.LATER), (425, Meaning.LATER),
     (429, Meaning.LATER), (500, Meaning.LATER), (503, Meaning.LATER)],
)  # fmt: skip
def test_what_answers_mean(status: int, meaning: Meaning) -> None:
    assert meaning_of(Answer(status)) is meaning
