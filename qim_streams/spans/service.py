"""MessageSpans: what a stage tells about the sampled ones of a batch, after the fact.

A stage that is traced has one of these, any other one has None and does nothing. It tells once per batch,
when the batch is done: since when, and which messages. So nothing runs along with a message, nothing has to
be ended when a stage fails, and a batch without a sampled message costs a hash per message.

Invariants: telling never raises and never waits; a span is told once per process as long as its id is
remembered (a batch that a stage tries again, a record that is written in slices).

What it does not do: carry anything from stage to stage. See `rules`.

Spec: §1.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from qim_streams.lru import LruMap
from qim_streams.spans.ports import SpanSink
from qim_streams.spans.rules import (
    NOWHERE,
    Place,
    Stage,
    StageSpan,
    Value,
    is_sampled,
    parent_of,
    sample_bound,
    span_id_of,
    trace_id_of,
)

log = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 10_000
CLOSE_S: Final = 2.0  # well below what a supervisor gives a role to end
_NS_PER_S: Final = 1_000_000_000

Messages = Iterable[tuple[str, bytes]]  # tenant and message_id


class MessageSpans:
    """See the module text. `ratio` of messages that are sampled, 0 to 1; `now_ns`: wall clock."""

    def __init__(self, ratio: float, sink: SpanSink, now_ns: Callable[[], int]) -> None:
        self._bound, self._sink, self.now_ns = sample_bound(ratio), sink, now_ns
        self._told: LruMap[bytes, bool] = LruMap(REMEMBERED_MAX, REMEMBERED_MAX)
        self._is_broken = False

    async def start(self) -> None:
        """Get ready to send. ConfigError says what is missing."""
        await asyncio.to_thread(self._sink.start)

    async def close(self) -> None:
        """Send what is left, for `CLOSE_S` at most."""
        await asyncio.to_thread(self._sink.close, CLOSE_S)

    def ago(self, seconds: float) -> int:
        """The wall clock of `seconds` ago, for stages that measure with another clock."""
        return self.now_ns() - int(seconds * _NS_PER_S)

    def note(
        self,
        stage: Stage,
        began_ns: int,
        messages: Messages,
        place: Place = NOWHERE,
        *,
        failed: str = "",
        **attributes: Value,
    ) -> None:
        """The stage is done with `messages`, as of now; the sampled ones among them get a span.

        `attributes` are those of the batch: numbers and names from small sets, never a text of a user.
        """
        try:
            found = self._spans(stage, began_ns, messages, place, failed, attributes)
            if found:
                self._sink.emit(found)
        except Exception:  # a span is never worth a batch
            if not self._is_broken:
                log.exception("spans are not told; this is said once")
            self._is_broken = True

    def _spans(
        self,
        stage: Stage,
        began_ns: int,
        messages: Messages,
        place: Place,
        failed: str,
        attributes: dict[str, Value],
    ) -> list[StageSpan]:
        found, bound, ended_ns = [], self._bound, 0
        for tenant, message_id in messages:
            trace_id = trace_id_of(message_id)
            if not is_sampled(trace_id, bound):
                continue
            span_id = span_id_of(message_id, stage, place)
            if self._told.get(span_id):
                continue
            self._told.put(span_id, True)
            ended_ns = ended_ns or self.now_ns()
            about: dict[str, Value] = {"qim.tenant_id": tenant, "qim.message_id": message_id.hex()}
            if place.shard >= 0:
                about["qim.mailbox_shard"] = place.shard
            about |= {f"qim.{name}": value for name, value in attributes.items()}
            parent = parent_of(message_id, stage, place)
            began = min(began_ns, ended_ns)  # a wall clock may have been set back meanwhile
            found.append(StageSpan(stage, trace_id, span_id, parent, began, ended_ns, about, failed))
        return found
