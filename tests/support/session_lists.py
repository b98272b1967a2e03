"""Are the session lists of a stack what the mailboxes say? Read from the store, as the projection left them.

For every user: the same conversations, each with the time of its newest message; a wide conversation's row
may be older, since its head has the time, but it is there. Who joins has the group in the list at once, with
the time of the join, which is no message's. F5's projection: monotonic and complete.

What was lost is rebuilt when its user asks for his list, so everybody asks first, until he is told that the
projection vouches for it.

Spec: §9.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

import aiohttp
import redis

from qim_streams.placement import lane, ordinal_of
from qim_streams.records import KIND_MESSAGE
from qim_streams.sessions.projection_records import activity_of
from qim_streams.sessions.redis_projection import user_key
from qim_streams.wire.frames import Event
from qim_streams.wire.frames_sessions import SessionList
from tests.support.checkers import list_differs
from tests.support.waiting import eventually
from tests.support.wire_client import WireError

PROJECTED_S = 60.0

Ask = Callable[[str], Awaitable[SessionList]]
"""The first page of a user's list."""


async def list_problems(
    redis_url: str, tenant_id: str, mailboxes: Mapping[str, Sequence[Event]], ask: Ask
) -> list[str]:
    """What is wrong once nothing changes for the better any more; empty when the lists are right."""
    unvouched = [line for user in mailboxes for line in await _unvouched(user, ask)]
    return unvouched + await _differences(redis_url, tenant_id, mailboxes)


async def _unvouched(user: str, ask: Ask) -> list[str]:
    """Ask until the list is said to be complete."""

    async def complete() -> bool:
        try:
            return (await ask(user)).projection_complete
        except (WireError, aiohttp.ClientError, OSError, TimeoutError):
            return False  # something may still be starting

    try:
        await eventually(complete, PROJECTED_S, "a complete list")
    except AssertionError:
        return [f"F5: the list of {user} does not become complete"]
    return []


async def _differences(redis_url: str, tenant_id: str, mailboxes: Mapping[str, Sequence[Event]]) -> list[str]:
    client = redis.Redis.from_url(redis_url, socket_timeout=5.0, socket_connect_timeout=5.0)
    said = times_of_messages(mailboxes)

    def find() -> list[str]:
        return [
            problem
            for user, events in mailboxes.items()
            for problem in _of_user(client, tenant_id, user, expected_list(events), said)
        ]

    async def right() -> bool:
        try:
            return not await asyncio.to_thread(find)
        except redis.RedisError:
            return False  # it may be starting

    try:
        await eventually(right, PROJECTED_S, "the session lists to be right")
    except AssertionError:
        return await asyncio.to_thread(find)
    finally:
        client.close()
    return []


def expected_list(events: Sequence[Event]) -> dict[str, int]:
    """conversation -> time of its newest message, from a whole mailbox."""
    found: dict[str, int] = {}
    for event in events:
        message = event.message
        if message.kind == KIND_MESSAGE:
            activity = activity_of(message.message_id)
            found[message.conversation_id] = max(activity, found.get(message.conversation_id, 0))
    return found


def times_of_messages(mailboxes: Mapping[str, Sequence[Event]]) -> set[tuple[str, int]]:
    """(conversation, time) of every message that anybody has."""
    return {
        (event.message.conversation_id, activity_of(event.message.message_id))
        for events in mailboxes.values()
        for event in events
    }


def _of_user(
    client: redis.Redis,
    tenant_id: str,
    user: str,
    wanted: Mapping[str, int],
    said: Set[tuple[str, int]],
) -> list[str]:
    number = lane(tenant_id, user)
    count = client.hget(f"{{o:{tenant_id}:{number}}}:ids", user)
    if count is None:
        return [f"F5: {user} has no ordinal, and messages"] if wanted else []
    ordinal = ordinal_of(int(count), number)  # type: ignore[arg-type]  # bytes
    held = client.zrange(user_key(tenant_id, ordinal, "convs"), 0, -1, withscores=True)
    wide = client.smembers(user_key(tenant_id, ordinal, "wide"))
    rows = {name.decode(): int(score) for name, score in held}  # type: ignore[union-attr]
    behind = {name.decode() for name in wide}  # type: ignore[union-attr]
    return list_differs(user, rows, behind, wanted, said)
