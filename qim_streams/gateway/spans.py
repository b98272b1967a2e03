"""What a gateway tells about sampled messages: two wrappers that are there only while tracing is on.

A send gets its message_id with its answer, so that is when it is told, from when it was handed over; one that
was refused, or whose outcome is unknown, has no id and no trace. A delivery is told when all sessions of a
poll have it in their queues.

Spec: §1, §3, §6.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.gateway.ports import Answered, WriterLinks
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.records import PushBatch
from qim_streams.spans.rules import Place, Stage
from qim_streams.spans.service import MessageSpans
from qim_streams.wire.events import message_id_in_body

Deliver = Callable[[Sequence[PushBatch]], Awaitable[None]]


class SpannedWriters:
    """`ports.WriterLinks` that tells of committed sends."""

    def __init__(self, writers: WriterLinks, spans: MessageSpans) -> None:
        self._writers, self._spans = writers, spans

    def submit(self, request: SendRequest, timeout_s: float, reply: Answered) -> None:
        """See the port."""
        answered = partial(self._answered, request.tenant_id, self._spans.now_ns(), reply)
        self._writers.submit(request, timeout_s, answered)

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """See the port: changes of groups are no messages."""
        return await self._writers.group(command, timeout_s)

    def _answered(self, tenant_id: str, began_ns: int, reply: Answered, outcome: SendOutcome) -> None:
        reply(outcome)
        if outcome.status is SendStatus.COMMITTED:
            self._spans.note(Stage.SEND, began_ns, [(tenant_id, outcome.message_id)])


class SpannedDeliveries:
    """Hands push batches on and tells of their events. `gateway`: its name, which tells it from others."""

    def __init__(self, deliver: Deliver, spans: MessageSpans, gateway: str) -> None:
        self._deliver, self._spans, self._gateway = deliver, spans, gateway

    async def __call__(self, batches: Sequence[PushBatch]) -> None:
        """Deliver, then tell."""
        began_ns = self._spans.now_ns()
        await self._deliver(batches)
        for batch in batches:
            place = Place(batch.mailbox_shard, self._gateway)
            self._spans.note(Stage.DELIVER, began_ns, _events(batch), place)


def _events(batch: PushBatch) -> Iterator[tuple[str, bytes]]:
    for item in batch.items:
        message_id = message_id_in_body(item.common_body)
        if message_id is not None:
            yield batch.tenant_id, message_id
