"""OpenTelemetry traces of a real stack: one trace per message, a span per stage, whoever dies meanwhile.

Every role is a process of its own, sends its spans to a collector in this process, and knows of the others'
spans only what follows from the message_id.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from qim_streams.spans.rules import Place, Stage, span_id_of, trace_id_of
from tests.integration.scenarios.conftest import Cast
from tests.support.collector import Collector, ReceivedSpan
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration]
pytest.importorskip("opentelemetry.exporter.otlp", reason="extra otel: traces across roles are unproven")

TOLD_S = 90.0
ROLES = {
    Stage.SEND: "gateway",
    Stage.COMMIT: "writer",
    Stage.APPEND: "writer",
    Stage.FANOUT: "fanout",
    Stage.ARCHIVE: "archiver",
    Stage.MAILBOX: "mailbox",
    Stage.PUSH: "mailbox",
    Stage.DELIVER: "gateway",
    Stage.NOTIFY: "notification",
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[StackProcess]:
    """A running `qim up` whose every message is traced, with notifications by webhook."""
    folder = tmp_path_factory.mktemp("traces")
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    env = {
        "QIM_TRACING_ENDPOINT": collector.url,
        "QIM_TRACING_RATIO": "1",
        "QIM_NOTIFICATION_PROVIDERS": "webhook",
        "QIM_NOTIFICATION_GRACE_MS": "0",
        "QIM_PUSH_WEBHOOK_URL": collector.base + "/push",
        "QIM_PUSH_WEBHOOK_SECRET_FILE": str(secret),
    }
    left_out = [word for role in ("qsession", "rooms") for word in ("--without", role)]
    with StackProcess(folder / "stack", *left_out, env=env) as running:
        yield running


@pytest.fixture
async def cast(stack: StackProcess) -> AsyncIterator[Cast]:
    people = Cast(stack, f"t{secrets.token_hex(4)}")
    yield people
    await people.close()


def stages(spans: list[ReceivedSpan]) -> set[str]:
    return {one.name for one in spans}


def check_tree(spans: list[ReceivedSpan], message_id: bytes) -> None:
    """One root, every other span's parent is there, and each came from the role whose work it is."""
    ids = {one.span_id for one in spans}
    assert [one.name for one in spans if not one.parent_id] == [Stage.SEND]
    assert {one.parent_id for one in spans if one.parent_id} <= ids
    assert {(one.name, one.service) for one in spans} <= {(s.value, f"qim-{r}") for s, r in ROLES.items()}
    assert all(one.began_ns <= one.ended_ns for one in spans)
    assert {one.attributes["qim.message_id"] for one in spans} == {message_id.hex()}
    by_name = {one.name: one for one in spans}
    assert by_name[Stage.COMMIT].span_id == span_id_of(message_id, Stage.COMMIT)
    shard = by_name[Stage.DELIVER].attributes["qim.mailbox_shard"]
    assert by_name[Stage.DELIVER].parent_id == span_id_of(message_id, Stage.PUSH, Place(shard))


async def test_a_message_is_one_trace_through_all_roles(collector: Collector, cast: Cast) -> None:
    ann, ben = cast.people("ann", "ben")
    sender = await ann.online()
    ipad, phone = await ben.online("ipad"), await ben.online("phone")
    await phone.push.register("webhook", f"token-{ben.user_id}")
    await phone.close()
    assert ipad

    async def whole() -> tuple[bytes, list[ReceivedSpan]] | None:
        """A message of which one device of ben was told by push, the other by a notification."""
        message_id = (await sender.send(b"hello", to_user_id=ben.user_id)).message_id
        found: list[ReceivedSpan] = []
        for _ in range(300):
            found = collector.spans(trace_id_of(message_id))
            if stages(found) == set(ROLES):
                return message_id, found
            await asyncio.sleep(0.01)
        return None  # the phone was still taken for online, most likely: once more

    message_id, spans = await eventually(whole, TOLD_S, "a trace with a span of every stage")
    check_tree(spans, message_id)
    (notify,) = [one for one in spans if one.name == Stage.NOTIFY]
    assert notify.attributes["qim.provider"] == "webhook"
    assert not notify.failed


async def test_a_replay_tells_nothing_new(collector: Collector, stack: StackProcess, cast: Cast) -> None:
    """Fan-out and mailbox are killed among messages: what is done again has the ids that it had."""
    ann, ben = cast.people("ann", "ben")
    sender = await ann.online()
    assert await ben.online()
    pids: dict[str, int] = {}
    sent = []
    for number in range(30):
        if number in (10, 20):
            role = "fanout" if number == 10 else "mailbox"
            pids[role] = await asyncio.to_thread(stack.kill, role)
        sent.append((await sender.send(b"%d" % number, to_user_id=ben.user_id)).message_id)
    wanted = {Stage.SEND, Stage.COMMIT, Stage.APPEND, Stage.FANOUT, Stage.MAILBOX}
    for role, pid in pids.items():
        await asyncio.to_thread(stack.wait_restarted, role, pid)
    # What a process had not sent yet when it was killed is lost; nothing of the last message was in it.
    last = (await sender.send(b"30", to_user_id=ben.user_id)).message_id
    await eventually(lambda: wanted <= stages(collector.spans(trace_id_of(last))), TOLD_S, "the trace")
    for message_id in (*sent, last):
        spans = collector.spans(trace_id_of(message_id))
        places = Counter((one.name, one.attributes.get("qim.mailbox_shard")) for one in spans)
        ids = {(one.name, one.attributes.get("qim.mailbox_shard"), one.span_id) for one in spans}
        assert len(ids) == len(places), "another id for the same work"
    assert len(await ben.mailbox(31)) == 31
