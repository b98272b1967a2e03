"""The stages' port of the log, on the worker's librdkafka producer."""

from collections.abc import Sequence

from qim_streams.log_ports import Outgoing
from qim_streams.streaming.producer import LogProducer


class StreamAppender:
    """`LogAppender` on a `LogProducer`."""

    def __init__(self, producer: LogProducer) -> None:
        self._producer = producer

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See `LogAppender.append`."""
        return await self._producer.append(records)
