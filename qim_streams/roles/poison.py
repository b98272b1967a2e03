"""The stages' poison sink on the dead-letter topic, for every stream role.

Spec: §11.
"""

from collections.abc import Sequence

from qim_streams.errors import RecordError
from qim_streams.log_ports import Poison
from qim_streams.streaming.dead_letter import DeadLetterSink


class PoisonLetters:
    """`log_ports.PoisonSink` on a `DeadLetterSink`."""

    def __init__(self, sink: DeadLetterSink) -> None:
        self._sink = sink

    async def send(self, poison: Sequence[Poison]) -> None:
        """Append all; returns when they are acknowledged."""
        for topic in dict.fromkeys(one.topic for one in poison):
            letters = [
                (one.partition, one.record, RecordError(one.cause)) for one in poison if one.topic == topic
            ]
            await self._sink.send_many(topic, letters)
