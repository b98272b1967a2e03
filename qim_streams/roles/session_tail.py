"""The mailbox worker's session lists, put together from settings.

Spec: §9.
"""

from functools import partial
from typing import NoReturn

from qim_streams.errors import InvariantViolation
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms
from qim_streams.sessions.projection import SessionProjection
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sessions.tail_compactor import TailCompactor
from qim_streams.settings import Settings


def compose_tail(settings: Settings, redis: RedisClient, members: MemberBitmaps) -> TailCompactor:
    """A compactor on the worker's own connections. It reads no log, and never ends the process."""
    wide_above = settings.session_rows_per_dispatch_max
    projection = SessionProjection(
        store=RedisProjection(redis),
        reader=RedisMembershipReader(redis, partial(partition_of, settings.outbox_partitions)),
        members=members,
        watermark=_nobody_asks,
        log_range=_no_log,
        now_ms=now_ms,
        wide_above=wide_above,
        die=_give_up,
    )
    return TailCompactor(projection, wide_above)


async def _nobody_asks(shard: int) -> int:
    raise InvariantViolation(f"shard {shard}: the compactor is told where it starts")


async def _no_log(shard: int) -> tuple[int, int]:
    raise InvariantViolation(f"shard {shard}: the compactor reads no log")


def _give_up(why: str) -> NoReturn:
    """The background task ends; the shard's checkpoint stays below what it could not write."""
    raise InvariantViolation(why)
