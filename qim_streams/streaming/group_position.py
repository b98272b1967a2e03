"""The group's committed offsets as the position of a role: for what may be repeated and must not be left out.

Stages with a store of their own start where the store says. A role that only tells others has none: what it
acknowledged, in order, is committed to its group, and that is where it goes on. A partition that the group
never committed starts at the end of its log, which is committed before the first record is asked for: what
comes from then on is told, whatever dies.

Spec: §14.1 (at least once).
"""

import logging

from aiokafka.errors import KafkaError
from faust.types import TP

from qim_streams.errors import StoreUnavailable
from qim_streams.streaming.app import StreamApp

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0


async def committed_position(app: StreamApp, topic: str, partition: int) -> int | None:
    """What the group has committed, None for nothing. StoreUnavailable: the broker does not answer."""
    try:
        committed = await app.consumer._thread.group_offset(TP(topic, partition), TIMEOUT_S)
    except (KafkaError, TimeoutError) as error:
        raise StoreUnavailable(f"{topic}[{partition}]: position of the group: {error!r}") from error
    return None if committed is None else int(committed)


async def group_position(app: StreamApp, topic: str, partition: int) -> int:
    """The next offset to be told. StoreUnavailable: the broker does not answer, ask again."""
    tp, consumer = TP(topic, partition), app.consumer
    committed = await committed_position(app, topic, partition)
    if committed is not None:
        return committed
    try:
        end = (await consumer.log_ranges([tp]))[tp].end
    except (KafkaError, TimeoutError) as error:
        raise StoreUnavailable(f"{topic}[{partition}]: position of the group: {error!r}") from error
    if not await consumer._commit({tp: end}):
        raise StoreUnavailable(f"{topic}[{partition}]: the first position could not be committed")
    log.info("%s[%d]: nothing was told yet; from offset %d on", topic, partition, end)
    return int(end)
