"""Whether a drain did what it had to: entries counted in the store, pushes and dispatches in the log."""

from confluent_kafka import Consumer, TopicPartition

from qim_streams.records import decode_push
from qim_streams.redis_tier import RedisClient
from tests.perf.processes import MeasurementError

SCAN_COUNT, READ_MAX, READ_S = 2_000, 10_000, 10.0


async def count_entries(client: RedisClient, pattern: str, *, then_drop: bool = False) -> int:
    """Entries of all mailboxes whose keys match; `then_drop` deletes them."""
    total, cursor = 0, 0
    while True:
        cursor, keys = await client.scan(cursor, match=pattern, count=SCAN_COUNT)
        if keys:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.xlen(key)
            if then_drop:
                pipe.unlink(*keys)
            total += sum((await pipe.execute())[: len(keys)])
        if cursor == 0:
            return total


def count_pushed(brokers: str, topic: str, partitions: int) -> int:
    """Devices that the records of the push log tell of a message, all batches together. Blocking."""
    total = 0
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "perf-check", "enable.auto.commit": False})
    try:
        for number in range(partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=READ_S)
            consumer.assign([TopicPartition(topic, number, low)])
            left = high - low
            while left > 0:
                found = consumer.consume(min(left, READ_MAX), timeout=READ_S)
                if not found:
                    raise MeasurementError(f"{topic}[{number}]: {left} records cannot be read")
                left -= len(found)
                total += sum(len(item.recipients) for one in found for item in decode_push(one.value()).items)
    finally:
        consumer.close()
    return total
