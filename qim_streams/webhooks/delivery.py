"""WebhookDelivery: the events of one endpoint, batch by batch of a log partition, until it has them.

Events of a batch are dealt to `parallel` rows by their order key, and each row goes out in requests of at
most `batch_max` events, one after the other: events of a conversation come in order. The batch is done, and
its offset committed, when the endpoint has taken everything of it. So an endpoint that is away holds
nothing but its own position in the log, in a process and a consumer group of its own.

What an answer means: 2xx taken; 408, 425, 429 and 5xx, and no answer, not yet: the call raises
EndpointUnavailable and is repeated with the same batch, without what was taken already; any other, refused:
the request is halved until the event that is refused stands alone, which goes to the dead letters. After
`retry_for_s` of failures the events of a request go there, too.

Invariants: at least once, in order per key, under ids that never change; what is repeated after a crash is
what was taken since the last commit. Nothing of a body goes into a log.

Spec: §11 (dead letters).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from qim_streams import failpoints
from qim_streams.errors import EndpointUnavailable, RecordError
from qim_streams.log_ports import LogBatch, LogRecord, Poison, PoisonSink
from qim_streams.webhooks import metrics
from qim_streams.webhooks.endpoints import Endpoint
from qim_streams.webhooks.events import Event
from qim_streams.webhooks.ports import Answer, Poster
from qim_streams.webhooks.signature import headers

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1_000_000
PAUSE_MAX_S = 5.0  # of one call; the rest of a Retry-After is waited for between calls
_LATER = frozenset({408, 425, 429})

Reader = Callable[[LogRecord], Event | None]


class Meaning(Enum):
    """What an answer says about the events of its request."""

    TAKEN = "taken"
    LATER = "later"
    REFUSED = "refused"


class Due(NamedTuple):
    """An event and the record that it came from."""

    event: Event
    record: LogRecord


def meaning_of(answer: Answer) -> Meaning:
    """See the module text."""
    if 200 <= answer.status < 300:
        return Meaning.TAKEN
    return Meaning.LATER if answer.status in _LATER or answer.status >= 500 else Meaning.REFUSED


class WebhookDelivery:
    """Delivers to one endpoint. Batches of different partitions may be handled at once."""

    def __init__(
        self,
        topic: str,
        endpoint: Endpoint,
        read: Reader,
        *,
        poster: Poster,
        poison: PoisonSink,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._topic, self._endpoint, self._read = topic, endpoint, read
        self._poster, self._poison, self._now_ms, self._monotonic = poster, poison, now_ms, monotonic
        self._secret = endpoint.secret.get_secret_value().encode()
        self._taken: dict[int, set[int]] = {}  # partition -> offsets of the batch at hand that are done
        self._failing_since: dict[int, float] = {}
        self._quiet_until = 0.0
        self._events = {
            name: metrics.EVENTS.labels(endpoint.name, name) for name in ("delivered", "refused", "expired")
        }

    def release(self, partitions: Iterable[int]) -> None:
        """Forget partitions that went."""
        for partition in partitions:
            self._taken.pop(partition, None)
            self._failing_since.pop(partition, None)

    async def handle(self, batch: LogBatch) -> None:
        """Deliver a batch. EndpointUnavailable: call again with the same batch."""
        failpoints.hit("webhook.batch_read")
        await self._keep_quiet()
        taken = self._taken.setdefault(batch.partition, set())
        rows = self._rows(batch, taken)
        if rows:
            outcomes = await asyncio.gather(
                *(self._row(batch.partition, row, taken) for row in rows), return_exceptions=True
            )
            self._judge(batch.partition, outcomes)
            failpoints.hit("webhook.batch_told")
        self._taken.pop(batch.partition, None)
        self._failing_since.pop(batch.partition, None)

    def _judge(self, partition: int, outcomes: Sequence[BaseException | None]) -> None:
        failures = [one for one in outcomes if one is not None]
        for failure in failures:
            if not isinstance(failure, EndpointUnavailable):
                raise failure
        if failures:
            self._failing_since.setdefault(partition, self._monotonic())
            raise failures[0]

    async def _keep_quiet(self) -> None:
        """Leave an endpoint alone for as long as it asked."""
        left_s = self._quiet_until - self._monotonic()
        if left_s > 0:
            await asyncio.sleep(min(left_s, PAUSE_MAX_S))
            if left_s > PAUSE_MAX_S:
                raise EndpointUnavailable(f"{self._endpoint.name}: asked to be left alone for {left_s:.0f} s")

    # -- what is due

    def _rows(self, batch: LogBatch, taken: set[int]) -> list[list[Due]]:
        rows: dict[int, list[Due]] = {}
        for record in batch.records:
            if record.offset in taken:
                continue
            event = self._event(record, batch.partition)
            if event is not None and event.tenant == self._endpoint.tenant:
                row = crc32(event.order_key.encode()) % self._endpoint.parallel
                rows.setdefault(row, []).append(Due(event, record))
        return list(rows.values())

    def _event(self, record: LogRecord, partition: int) -> Event | None:
        try:
            return self._read(record)
        except RecordError as error:
            # The stage that owns the log sets it aside; here it is nobody's event.
            log.warning("%s[%d]: no event at offset %d: %s", self._topic, partition, record.offset, error)
            return None

    # -- requests

    async def _row(self, partition: int, row: list[Due], taken: set[int]) -> None:
        for begin in range(0, len(row), self._endpoint.batch_max):
            await self._deliver(partition, row[begin : begin + self._endpoint.batch_max], taken)

    async def _deliver(self, partition: int, due: list[Due], taken: set[int]) -> None:
        body = json.dumps({"events": [one.event.told() for one in due]}, ensure_ascii=False).encode()
        if len(body) > REQUEST_BYTES_MAX and len(due) > 1:
            await self._halves(partition, due, taken)
            return
        meaning, why = await self._post(due, body)
        if meaning is Meaning.LATER:
            self._give_up_or_raise(partition, why)
            await self._bury(
                partition, due, f"not taken for {self._endpoint.retry_for_s} s: {why}", "expired"
            )
        elif meaning is Meaning.REFUSED and len(due) > 1:
            await self._halves(partition, due, taken)
            return
        elif meaning is Meaning.REFUSED:
            await self._bury(partition, due, f"refused: {why}", "refused")
        else:
            self._events["delivered"].inc(len(due))
            self._observe(due)
        taken.update(one.record.offset for one in due)
        failpoints.hit("webhook.delivered")

    async def _halves(self, partition: int, due: list[Due], taken: set[int]) -> None:
        half = len(due) // 2
        await self._deliver(partition, due[:half], taken)
        await self._deliver(partition, due[half:], taken)

    async def _post(self, due: list[Due], body: bytes) -> tuple[Meaning, str]:
        name, began_s = self._endpoint.name, self._monotonic()
        # The same events make the same request, so a receiver may drop repeats by this id alone.
        request_id = f"{due[0].event.id}.{len(due)}"
        signed = headers(self._secret, request_id, self._now_ms() // 1_000, body)
        try:
            answer = await self._poster.post(
                self._endpoint.url, signed, body, self._endpoint.timeout_ms / 1_000
            )
        except EndpointUnavailable as error:
            metrics.REQUESTS.labels(name, "no_answer").inc()
            return Meaning.LATER, str(error)
        meaning = meaning_of(answer)
        metrics.REQUESTS.labels(name, meaning.value).inc()
        metrics.REQUEST_SECONDS.labels(name).observe(self._monotonic() - began_s)
        if meaning is Meaning.LATER and answer.retry_after_s:
            self._quiet_until = self._monotonic() + answer.retry_after_s
        return meaning, f"status {answer.status}"

    def _give_up_or_raise(self, partition: int, why: str) -> None:
        """Raise, unless this partition has failed for longer than the endpoint's patience."""
        since = self._failing_since.get(partition)
        if since is None or self._monotonic() - since < self._endpoint.retry_for_s:
            raise EndpointUnavailable(f"webhook {self._endpoint.name}: {why}")

    async def _bury(self, partition: int, due: list[Due], cause: str, outcome: str) -> None:
        text = f"webhook {self._endpoint.name}: {cause}"
        await self._poison.send([Poison(self._topic, partition, one.record, text) for one in due])
        self._events[outcome].inc(len(due))

    def _observe(self, due: list[Due]) -> None:
        at_ms = due[0].event.fields.get("committed_at_ms")
        if at_ms is not None:
            metrics.AGE_SECONDS.labels(self._endpoint.name).observe(max(0, self._now_ms() - at_ms) / 1_000)
