"""KafkaLogReader: a consumer that failed is not asked again. What it reads: tests/integration/commit."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from qim_streams.commit import kafka_reader
from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.errors import StoreUnavailable


class Consumers:
    """Makes consumers; the first one met the topic while it was being made, and knows no partition of it."""

    def __init__(self) -> None:
        self.made: list[Consumers.One] = []

    def __call__(self, *_args: object, **_options: object) -> "Consumers.One":
        self.made.append(Consumers.One(good=bool(self.made)))
        return self.made[-1]

    class One:
        """A consumer of a log of 7 records, 3 to 9."""

        def __init__(self, good: bool) -> None:
            self.good, self.closed = good, False

        def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
            """Says the same for as long as it lives."""
            assert timeout > 0
            assert not self.closed
            if not self.good:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
            return 3, 10

        def close(self) -> None:
            """No more questions."""
            self.closed = True


@pytest.mark.parametrize("ask", ["span", "begin", "read"])
async def test_a_consumer_that_failed_is_replaced(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a role whose consumer came too early for the topic never serves, until somebody restarts it."""
    consumers = Consumers()
    monkeypatch.setattr(kafka_reader, "Consumer", consumers)
    reader = KafkaLogReader("127.0.0.1:1", "qim.room.v1")
    asked = anext(reader.read(2, 3)) if ask == "read" else getattr(reader, ask)(2)
    with pytest.raises(StoreUnavailable, match=r"qim\.room\.v1\[2\]"):
        await asked
    assert [one.closed for one in consumers.made] == [True]
    assert await reader.span(2) == (3, 10)
    assert await reader.begin(2) == 3
    assert len(consumers.made) == 2, "one that answers is kept"
    await reader.close()
    assert consumers.made[1].closed
