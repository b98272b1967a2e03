"""What the notification stage tells: a span for each request to a provider."""

import pytest

from qim_streams.notification.ports import Answer, Result
from qim_streams.spans.rules import Place, Stage, span_id_of
from qim_streams.testing.memory_spans import MemorySpans, every_message
from tests.unit.notification.world import NotificationWorld


@pytest.fixture
def sink() -> MemorySpans:
    return MemorySpans()


async def test_each_request_to_a_provider_is_a_span(sink: MemorySpans) -> None:
    """The first is refused for now, the second one is taken: two spans, and which failed is said."""
    world = NotificationWorld()
    world.spans = every_message(sink)
    await world.device()
    answers = [Answer(Result.BUSY, retry_after_ms=1_000), Answer(Result.SENT)]
    world.providers["apns"].answer = lambda _: answers.pop(0)
    task = world.message()
    async with world.running() as service:
        await world.offer(service, task)
        await world.pass_time(600_000, 1_000)
    assert not answers
    first, second = sink.of(Stage.NOTIFY)
    assert (first.failed, second.failed) == ("busy", "")
    assert first.span_id != second.span_id
    assert first.parent_id == second.parent_id
    assert first.parent_id == span_id_of(task.message_id, Stage.MAILBOX, Place(task.mailbox_shard))
    assert first.attributes["qim.provider"] == "apns"
