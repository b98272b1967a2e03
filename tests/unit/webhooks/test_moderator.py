"""before_send: what is asked, what answers mean, and that a send is answered once and in its order."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import EndpointUnavailable
from qim_streams.gateway.before_send import AskingWriters
from qim_streams.gateway.ports import Answered
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.records import KIND_RECALL
from qim_streams.webhooks.endpoints import BeforeSend
from qim_streams.webhooks.moderator import Moderator, Ruling, question, ruling_of
from qim_streams.webhooks.ports import Answer

LIMIT = 1_000


def send(number: int = 1, body: bytes = b"hello", tenant: str = "acme", **changes: object) -> SendRequest:
    request = SendRequest(tenant, "room", "ann", 64, "phone", f"c-{number}", body)
    return request._replace(**changes)  # type: ignore[arg-type]


class Application:
    """Answers what a function says about the question."""

    def __init__(self, answer: Callable[[dict[str, str]], bytes | Exception]) -> None:
        self.answer, self.asked = answer, list[dict[str, str]]()
        self.gate = asyncio.Event()
        self.gate.set()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        fields = json.loads(body)
        self.asked.append(fields)
        await self.gate.wait()
        answer = self.answer(fields)
        if isinstance(answer, Exception):
            raise answer
        return Answer(200, answer)

    async def close(self) -> None:
        pass


def moderator(tmp_path: Path, application: Application, **fields: object) -> Moderator:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    entry = BeforeSend.model_validate(
        {"tenant": "acme", "url": "https://app/", "secret_file": secret} | fields
    )
    return Moderator([entry], application, body_bytes_max=LIMIT, now_ms=lambda: 5_000, monotonic=lambda: 0.0)


class Writers:
    """Takes what comes through, in order."""

    def __init__(self) -> None:
        self.came: list[SendRequest] = []

    def submit(self, request: SendRequest, timeout_s: float, reply: Answered) -> None:
        self.came.append(request)
        reply(SendOutcome(SendStatus.COMMITTED, b"i" * 16, len(self.came), 1))

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        raise NotImplementedError


def test_the_question_names_sender_conversation_and_body() -> None:
    assert json.loads(question(send(7, b"hi", to_user_id="bob"))) == {
        "type": "message.before_send",
        "tenant_id": "acme",
        "conversation_id": "room",
        "to_user_id": "bob",
        "sender_id": "ann",
        "sender_device_id": "phone",
        "client_message_id": "c-7",
        "body": "hi",
    }


@pytest.mark.parametrize(
    ("answer", "ruling"),
    [
        (b'{"action": "allow"}', Ruling(b"asked")),
        (b'{"action": "refuse", "reason": "rude"}', Ruling(None, "rude")),
        (b'{"action": "refuse"}', Ruling(None, "")),
        (b'{"action": "change", "body": "nicer"}', Ruling(b"nicer")),
        (b'{"action": "change", "body_base64": "/wA="}', Ruling(b"\xff\x00")),
        (b'{"action": "change"}', None),
        (b'{"action": "change", "body": 5}', None),
        (b'{"action": "change", "body_base64": "*"}', None),
        (b'{"action": "change", "body": "' + b"x" * (LIMIT + 1) + b'"}', None),
        (b'{"action": "delete"}', None),
        (b"[]", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_what_answers_mean(answer: bytes, ruling: Ruling | None) -> None:
    assert ruling_of(answer, b"asked", LIMIT) == ruling


@pytest.mark.parametrize(("on_failure", "body"), [("allow", b"hello"), ("refuse", None)])
@pytest.mark.parametrize("answer", [b"nonsense", EndpointUnavailable("no answer within 0.3 s")])
async def test_without_an_answer_the_entry_decides(
    on_failure: str, body: bytes | None, answer: bytes | Exception, tmp_path: Path
) -> None:
    ruling = await moderator(tmp_path, Application(lambda _: answer), on_failure=on_failure).ask(send())
    assert (ruling.body, ruling.certain) == (body, False)


async def test_a_repeat_gets_its_ruling_again(tmp_path: Path) -> None:
    answers = [b'{"action": "change", "body": "one"}', b'{"action": "refuse"}']
    application = Application(lambda _: answers.pop(0))
    asks = moderator(tmp_path, application)
    assert (await asks.ask(send())).body == b"one"
    assert (await asks.ask(send())).body == b"one"
    assert (await asks.ask(send(body=b"another"))).body is None, "another body is another question"
    assert len(application.asked) == 2


async def test_more_questions_than_are_allowed_count_as_failures(tmp_path: Path) -> None:
    application = Application(lambda _: b'{"action": "allow"}')
    application.gate.clear()
    asks = moderator(tmp_path, application, parallel=2, on_failure="refuse")
    first = [asyncio.create_task(asks.ask(send(n))) for n in range(2)]
    await asyncio.sleep(0)
    assert not (await asks.ask(send(3))).certain
    application.gate.set()
    assert [one.body for one in await asyncio.gather(*first)] == [b"hello"] * 2


async def replies(writers: AskingWriters, requests: list[SendRequest]) -> list[SendOutcome]:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in requests]
    for request, future in zip(requests, futures, strict=True):
        writers.submit(request, 5.0, future.set_result)
    return await asyncio.wait_for(asyncio.gather(*futures), 10)


async def test_sends_stay_in_order_and_refusals_are_answered(tmp_path: Path) -> None:
    def rule(fields: dict[str, str]) -> bytes:
        return (
            b'{"action": "refuse", "reason": "odd"}'
            if int(fields["client_message_id"][2:]) % 2
            else (b'{"action": "change", "body": "even"}')
        )

    inner = Writers()
    outcomes = await replies(
        AskingWriters(inner, moderator(tmp_path, Application(rule))), [send(n) for n in range(40)]
    )
    assert [one.client_message_id for one in inner.came] == [f"c-{n}" for n in range(0, 40, 2)]
    assert {one.body for one in inner.came} == {b"even"}
    for number, outcome in enumerate(outcomes):
        if number % 2:
            assert (outcome.code, outcome.detail) == ("REFUSED_BY_APPLICATION", "odd")
        else:
            assert outcome.status is SendStatus.COMMITTED


async def test_other_tenants_and_recalls_go_straight_on_unless_something_waits(tmp_path: Path) -> None:
    application = Application(lambda _: b'{"action": "allow"}')
    application.gate.clear()
    inner = Writers()
    writers = AskingWriters(inner, moderator(tmp_path, application))
    done: list[SendOutcome] = []
    writers.submit(send(1, tenant="other"), 5.0, done.append)
    writers.submit(send(2, b"", kind=KIND_RECALL, target_seq=1), 5.0, done.append)
    assert len(done) == 2
    assert application.asked == []
    writers.submit(send(3), 5.0, done.append)
    writers.submit(send(4, b"", kind=KIND_RECALL, target_seq=1), 5.0, done.append)
    await asyncio.sleep(0)
    assert len(done) == 2, "the recall waits for the send before it"
    application.gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [one.client_message_id for one in inner.came] == ["c-1", "c-2", "c-3", "c-4"]


async def test_no_ruling_where_one_is_needed_is_a_temporary_refusal(tmp_path: Path) -> None:
    asks = moderator(tmp_path, Application(lambda _: EndpointUnavailable("away")), on_failure="refuse")
    (outcome,) = await replies(AskingWriters(Writers(), asks), [send()])
    assert (outcome.code, outcome.retry_after_ms) == ("APPLICATION_UNAVAILABLE", 2_000)


async def test_a_broken_application_class_is_an_answer_too(tmp_path: Path) -> None:
    asks = moderator(tmp_path, Application(lambda _: ZeroDivisionError()))
    (outcome,) = await replies(AskingWriters(Writers(), asks), [send()])
    assert outcome.code == "APPLICATION_UNAVAILABLE"
