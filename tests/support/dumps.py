"""The logs as rows for the checkers, read beside the running stack from a noted place to the present end.

Records that cannot be decoded are left out here, as every reader leaves them out; what becomes of them is
what the dead letters tell.

Spec: §3, §4, §11.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import redis
from confluent_kafka import Producer

from qim_streams.errors import RecordError
from qim_streams.ownership.log_fence import barrier_epoch
from qim_streams.records import decode_dispatch, decode_message, decode_outbox
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC
from qim_streams.streaming.dead_letter_record import DeadLetter
from tests.support.checkers import Coordinates, DispatchRow, Letter, OutboxRow
from tests.support.logs import DISPATCH, OUTBOX, ends, read_topic

SEND_S = 20.0


class Begin(NamedTuple):
    """Where the logs stood before a strike: partition -> end, by topic; fences of the Outbox up to there."""

    ends: Mapping[str, Mapping[int, int]]
    fences: Mapping[int, int]


class Dump(NamedTuple):
    """What a strike left in the logs. `fences`: of each Outbox partition, at the end."""

    outbox: list[OutboxRow]
    dispatches: list[DispatchRow]
    letters: list[Letter]
    fences: dict[int, int]


TOPICS = (OUTBOX, DISPATCH, DEAD_LETTER_TOPIC)


def begin(brokers: str, fences: Mapping[int, int] | None = None) -> Begin:
    """The present ends. `fences` as the last dump left them; None: the Outbox is read for them."""
    found = {topic: ends(brokers, topic) for topic in TOPICS}
    if fences is None:
        known: dict[int, int] = {}
        for _ in _outbox_rows(brokers, {}, known):
            pass
        fences = known
    return Begin(found, dict(fences))


def dump(brokers: str, since: Begin) -> Dump:
    """Everything from `since` to the present end."""
    fences = dict(since.fences)
    outbox = list(_outbox_rows(brokers, since.ends[OUTBOX], fences))
    dispatches = [
        row
        for record in read_topic(brokers, DISPATCH, since.ends[DISPATCH])
        if (row := dispatch_row(record.partition(), record.offset(), record.value())) is not None
    ]
    letters = []
    for record in read_topic(brokers, DEAD_LETTER_TOPIC, since.ends[DEAD_LETTER_TOPIC]):
        letter = DeadLetter.decode(record.value())
        at = (letter.topic, letter.partition, letter.offset)
        letters.append(Letter(letter.role, at, letter.value or b""))
    return Dump(outbox, dispatches, letters, fences)


def _outbox_rows(brokers: str, start: Mapping[int, int], fences: dict[int, int]) -> Iterator[OutboxRow]:
    """The messages, in offset order per partition; `fences` follows the barriers."""
    for record in read_topic(brokers, OUTBOX, start):
        partition, fence = record.partition(), fences.get(record.partition(), 0)
        try:
            epoch = barrier_epoch(record.key(), record.value())
            if epoch is not None:
                fences[partition] = max(epoch, fence)
                continue
            outer = decode_outbox(record.value() or b"")
            message = decode_message(outer.message)
        except RecordError:
            continue
        yield OutboxRow(
            partition,
            record.offset(),
            outer.fencing_epoch,
            fence,
            message.message_id,
            message.client_message_id,
            outer.message,
        )


def dispatch_row(partition: int, offset: int, value: bytes | None) -> DispatchRow | None:
    """A record of the dispatch log as a row; None when it is none."""
    try:
        one = decode_dispatch(value or b"")
    except RecordError:
        return None
    content = one._replace(fencing_epoch=0, outbox_offset=0)
    return DispatchRow(
        partition,
        offset,
        one.target_mailbox_shard,
        one.dispatch_id,
        one.message_id,
        one.outbox_offset,
        tuple(content),
        value or b"",
    )


def inject(brokers: str, topic: str, partition: int, values: list[bytes]) -> dict[Coordinates, bytes]:
    """Append records that nobody can decode; where each of them lies."""
    found: dict[Coordinates, bytes] = {}
    producer = Producer({"bootstrap.servers": brokers, "acks": "all", "log_level": 0})

    def lies(value: bytes, error: object, record: object) -> None:
        assert error is None, f"poison was not appended: {error}"
        found[topic, partition, record.offset()] = value  # type: ignore[attr-defined]

    for value in values:
        producer.produce(
            topic, value, b"poison", partition, on_delivery=lambda e, r, value=value: lies(value, e, r)
        )
    assert producer.flush(SEND_S) == 0, f"poison was not appended to {topic} within {SEND_S} s"
    return found


def hot_heads(redis_url: str, tenant: str) -> dict[str, tuple[int, int]]:
    """Conversation -> (first seq in the hot tier, last archived seq), of those that were trimmed."""
    found = {}
    with closing(redis.Redis.from_url(redis_url, socket_timeout=5.0)) as client:
        for key in client.scan_iter(match=f"{{ob:*}}:c:{tenant}:*", count=1_000):
            hot_from, archived = client.hmget(key, ["hot_from", "archived_seq"])  # type: ignore[misc]
            if hot_from is not None:
                found[key.decode().rpartition(":")[2]] = (int(hot_from), int(archived or 0))
    return found
