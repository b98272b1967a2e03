"""Judging a room, counting what is received, and what a show that goes wrong does to the verdict."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from qim_streams.client.room_tracker import Ended, Happened, Lost, RoomDelivery, Said
from qim_streams.demo import shows
from qim_streams.demo.receiver import DemoReceiver, environment
from qim_streams.demo.run import DemoReport
from qim_streams.demo.shows import Show, judge_visitor, played
from qim_streams.embedded.ports import free_ports
from qim_streams.errors import AdmissionRefused
from qim_streams.notification.webhook import signature
from qim_streams.settings import load_settings
from qim_streams.webhooks.endpoints import load_webhooks
from qim_streams.webhooks.signature import headers
from qim_streams.wire.frames_rooms import RoomAck, RoomEvent, RoomMessage

SECRET = "s" * 40
MESSAGE = bytes(range(16))


def said(seq: int, epoch: int = 1) -> Said:
    return Said(epoch, RoomMessage(seq, seq.to_bytes(16, "big"), "ann", 1, b"x", f"m{seq}"))


def ack(seq: int) -> RoomAck:
    return RoomAck(1, "lobby", f"m{seq}", seq.to_bytes(16, "big"), 1, seq, 1)


END: list[RoomDelivery] = [
    Happened(RoomEvent("lobby", "mute", 1, 3)),
    Happened(RoomEvent("lobby", "close", 1, 3)),
    Ended("ROOM_CLOSED"),
]
ACKS = [ack(1), ack(2), ack(3)]


def test_a_visitor_who_saw_all_is_judged_well() -> None:
    assert judge_visitor("ann", [said(1), said(2), said(3), *END], ACKS) == []


@pytest.mark.parametrize(
    ("got", "complaint"),
    [
        ([said(1), said(3), *END], "was shown [1, 3]"),
        ([said(1), said(3), said(2), *END], "was shown [1, 3, 2]"),
        ([said(1), said(2), said(2), said(3), *END], "was shown [1, 2, 2, 3]"),
        ([said(1), said(2), said(3, epoch=2), *END], "was shown [1, 2, 3]"),
        ([said(1), said(2), said(3), Lost(1, 4, 5, "gap"), *END], "told of gaps [(4, 5, 'gap')]"),
        ([said(1), said(2), said(3), *END[1:]], "heard no mute"),
        ([said(1), said(2), said(3), END[0], END[2]], "heard no close"),
        ([said(1), said(2), said(3), *END[:2]], "did not hear that the room has ended"),
        ([said(1), said(2), said(3), *END[:2], Ended("BANNED")], "did not hear that the room has ended"),
    ],
)
def test_a_visitor_who_missed_something_is_told(got: Sequence[RoomDelivery], complaint: str) -> None:
    (found,) = judge_visitor("ann", got, ACKS)
    assert complaint in found


async def test_a_show_that_goes_wrong_costs_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(show: Show) -> None:
        raise AdmissionRefused("NOT_ALLOWED", "no")

    async def hangs(show: Show) -> None:
        await shows.until(lambda: False)

    async def too_often(show: Show) -> None:
        show.figures = "one request"
        show.late.append(lambda: "there were two")

    monkeypatch.setattr(shows, "SHOW_S", 0.05)
    for play, complaint in ((refused, "NOT_ALLOWED"), (hangs, "not over within")):
        show = await played("one", play)
        assert complaint in show.complaints[0]
        assert show.line == "scene one: not played to its end: NOT OK"
    late = await played("one", too_often)
    assert late.line == "scene one: one request: ok"
    report = DemoReport(shows=[late])
    assert report.clean
    late.settle()
    late.settle()
    assert (report.clean, report.exit_code, late.complaints) == (False, 1, ["there were two"])
    assert "scene one: one request: NOT OK" in report.lines()
    assert "verdict: NOT CLEAN" in report.lines()


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[DemoReceiver, str]]:
    (port,) = free_ports(1)
    async with DemoReceiver(port, SECRET) as one:
        yield one, f"http://127.0.0.1:{port}"


def event(name: str) -> dict[str, str]:
    return {"id": name, "outcome": name.split(":")[1], "message_id": MESSAGE.hex()}


async def test_what_is_received_is_counted_when_it_is_signed(receiver: tuple[DemoReceiver, str]) -> None:
    """Requests by message, results once per event; a wrong signature is refused and told."""
    one, url = receiver
    pushed = json.dumps({"message_id": MESSAGE.hex()}).encode()
    told = json.dumps({"events": [event("n1:sent"), event("n1:sent"), event("n2:dead")]}).encode()
    at = str(int(time.time()))
    signed = {"x-qim-timestamp": at, "x-qim-signature": f"v1={signature(SECRET.encode(), at, pushed)}"}
    async with aiohttp.ClientSession() as http:

        async def post(path: str, body: bytes, given: dict[str, str]) -> int:
            async with http.post(url + path, data=body, headers=given) as answer:
                return answer.status

        good = headers(SECRET.encode(), "r1", int(at), told)
        assert await post("/push", pushed, signed) == await post("/push", pushed, signed) == 204
        assert await post("/events", told, good) == await post("/events", told, good) == 204
        assert one.requests(MESSAGE) == 2
        assert one.outcomes(MESSAGE) == ["sent", "dead"]
        assert one.forged == 0
        for stale in ({}, signed | {"x-qim-timestamp": "1"}, signed | {"x-qim-signature": "v1=00"}):
            assert await post("/push", pushed, stale) == 401
        assert await post("/events", told + b" ", good) == 401
        assert one.forged == 4
        assert (one.requests(MESSAGE), one.requests(bytes(16)), one.outcomes(bytes(16))) == (2, 0, [])


def test_a_stack_of_these_settings_tells_the_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path, 4_711, SECRET, "acme").items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.push_providers() == ("webhook",)
    assert settings.push_webhook_url == "http://127.0.0.1:4711/push"
    (endpoint,) = load_webhooks(settings.webhooks_file).endpoints
    assert (endpoint.tenant, endpoint.events) == ("acme", ("push.result",))
    assert endpoint.secret.get_secret_value() == SECRET
