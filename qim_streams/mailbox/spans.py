"""What the mailbox stage tells about sampled messages once W covers them.

Spec: §1, §5.
"""

from collections.abc import Sequence

from qim_streams.mailbox.intake import Kind, Taken
from qim_streams.mailbox.open_lanes import OpenRecord
from qim_streams.mailbox.shards import Shard
from qim_streams.spans.rules import Place, Stage
from qim_streams.spans.service import MessageSpans


def tell(spans: MessageSpans, covered: Sequence[tuple[Shard, Sequence[Taken]]], now_s: float) -> None:
    """The new records of these batches are covered, each batch since it was taken. `now_s`: monotonic."""
    for shard, taken in covered:
        since_s = now_s if shard.held_since_s is None else shard.held_since_s
        new = [one.dispatch for one in taken if one.kind is Kind.NEW and one.dispatch is not None]
        messages = [(one.tenant_id, one.message_id) for one in new]
        spans.note(Stage.MAILBOX, spans.ago(now_s - since_s), messages, Place(shard.shard))


def tell_completed(spans: MessageSpans, shard: Shard, record: OpenRecord, now_s: float) -> None:
    """A record is in its last lane; it was read while the lanes stood apart. `now_s`: monotonic."""
    message = record.dispatch.tenant_id, record.dispatch.message_id
    began_ns = spans.ago(now_s - record.taken_at_s)
    spans.note(Stage.MAILBOX, began_ns, [message], Place(shard.shard), lanes_apart=1)
