"""What the console reads of the hot tier, against the real one: users, devices, conversations, marks.

Spec: §2, §11.
"""

from typing import Any

import pytest

from qim_streams.commit import keys
from qim_streams.console.dead_letters import DISCARDED, GIVING, OPEN, Mark
from qim_streams.console.redis_index import ACTIVE_MAX, RedisConversationIndex, RedisUserIndex
from qim_streams.console.redis_letters import RedisLetterMarks
from qim_streams.errors import ProtocolError
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.redis_tier import RedisClient
from qim_streams.script_pipe import ScriptPipe

PARTITIONS = 4


async def all_users(index: RedisUserIndex, limit: int, contains: str = "") -> dict[str, int]:
    """Every user, page by page, each once."""
    found: dict[str, int] = {}
    cursor = None
    for _ in range(2_000):
        rows, cursor = await index.users("acme", cursor, limit, contains)
        assert not found.keys() & dict(rows).keys()
        found |= dict(rows)
        if cursor is None:
            return found
    raise AssertionError("paging does not end")


@pytest.mark.parametrize("limit", [1, 50, 200])
async def test_every_user_is_listed_once(hot_client: RedisClient, limit: int) -> None:
    """Of 1,500 users and another tenant's: each with the ordinal that the directory gave him."""
    names = [f"user-{number}" for number in range(1_500)]
    directory = RedisOrdinalDirectory(hot_client, ScriptPipe(hot_client))
    given = dict(zip(names, await directory.assign("acme", names), strict=True))
    await directory.assign("acme2", ["stranger"])
    index = RedisUserIndex(hot_client)
    assert await all_users(index, limit) == given
    assert await index.ordinal("acme", "user-7") == given["user-7"]
    assert await index.ordinal("acme", "stranger") is None


async def test_users_are_found_by_a_part_of_their_id(hot_client: RedisClient) -> None:
    directory = RedisOrdinalDirectory(hot_client, ScriptPipe(hot_client))
    await directory.assign("acme", ["ann", "joann", "ben", "a.n~n"])
    index = RedisUserIndex(hot_client)
    assert set(await all_users(index, 50, "ann")) == {"ann", "joann"}
    assert set(await all_users(index, 50, "a.n")) == {"a.n~n"}
    assert not await all_users(index, 50, "zoe")
    for text in ("*", "a?", "[ab]", "a\\", "x" * 129):
        with pytest.raises(ProtocolError, match="contains"):
            await index.users("acme", None, 50, text)


@pytest.mark.parametrize(
    "cursor", ["", "x", "1", "1.2.3", "-1.0", "1.x", "1." + "9" * 40, "1.18446744073709551616", "\u0661.0"]
)
async def test_cursors_of_others_are_refused(hot_client: RedisClient, cursor: str) -> None:
    with pytest.raises(ProtocolError, match="cursor"):
        await RedisUserIndex(hot_client).users("acme", cursor, 5, "")
    if cursor != "1.2":
        with pytest.raises(ProtocolError, match="cursor"):
            await index_of(hot_client).active("acme", cursor, 5, "")


async def test_devices_the_last_seen_first(hot_client: RedisClient) -> None:
    rows = {"phone": "17 900 ios -", "old": "5 100", "tab": "18 950 - phone", "odd": "x y z"}
    await hot_client.hset("{u:acme:ann}:dev", mapping=rows)  # type: ignore[arg-type] # the stub is too narrow
    found = await RedisUserIndex(hot_client).devices("acme", "ann")
    assert [(one.device_id, one.session_epoch, one.platform, one.ended_by) for one in found] == [
        ("tab", 18, None, "phone"), ("phone", 17, "ios", None), ("old", 5, None, None), ("odd", 0, "z", None),
    ]  # fmt: skip


async def test_tenants(hot_client: RedisClient) -> None:
    await hot_client.sadd("{qt:all}:tenants", "b", "a")
    assert await RedisUserIndex(hot_client).tenants() == ["a", "b"]


# -- conversations


def index_of(client: RedisClient) -> RedisConversationIndex:
    """An index whose heads are not asked for."""

    def none() -> Any:
        raise AssertionError("no heads here")

    return RedisConversationIndex(client, PARTITIONS, none)


async def archived(client: RedisClient, tenant: str, times: dict[str, int]) -> None:
    """Conversations spread over the partitions, with when messages of them were last archived."""
    for number, (name, at_ms) in enumerate(times.items()):
        await client.zadd(f"{keys.base(number % PARTITIONS)}hot", {f"{tenant}:{name}": at_ms})


async def listed(client: RedisClient, limit: int, contains: str = "") -> list[tuple[str, int]]:
    """Every conversation of acme, page by page."""
    found, cursor = [], None
    for _ in range(2_000):
        rows, cursor = await index_of(client).active("acme", cursor, limit, contains)
        found += [(one.conversation_id, one.active_at_ms) for one in rows]
        if cursor is None:
            return found
    raise AssertionError("paging does not end")


@pytest.mark.parametrize("limit", [1, 7, 200])
async def test_conversations_the_newest_first_each_once(hot_client: RedisClient, limit: int) -> None:
    """Also where many have the same moment, and among those of other tenants."""
    times = {f"c{number:03}": 1_000 + number // 40 for number in range(300)}
    await archived(hot_client, "acme", times)
    await archived(hot_client, "acme2", {f"d{number}": 1_003 for number in range(90)})
    found = await listed(hot_client, limit)
    assert found == sorted(times.items(), key=lambda one: (-one[1], one[0]))


async def test_conversations_are_found_by_a_part_of_their_id(hot_client: RedisClient) -> None:
    await archived(hot_client, "acme", {"team": 5, "steam": 6, "ops": 7})
    assert [name for name, _ in await listed(hot_client, 10, "team")] == ["steam", "team"]


async def test_a_request_looks_at_so_much_only(hot_client: RedisClient) -> None:
    """A tenant with nothing among very many of others: pages are empty, go on, and end."""
    pipe = hot_client.pipeline(transaction=False)
    for number in range(2 * ACTIVE_MAX + 10):
        pipe.zadd(f"{keys.base(0)}hot", {f"other:c{number}": number})
    await pipe.execute()
    rows, cursor = await index_of(hot_client).active("acme", None, 10, "")
    assert not rows
    assert cursor is not None
    assert not await listed(hot_client, 10)


# -- marks of dead letters


async def test_marks_move_by_compare_and_set(hot_client: RedisClient) -> None:
    marks = RedisLetterMarks(hot_client)
    assert await marks.read([(0, 7)]) == [None]
    assert await marks.move((0, 7), OPEN, Mark(GIVING, 5))
    assert not await marks.move((0, 7), OPEN, Mark(DISCARDED, 6))
    assert await marks.move((0, 7), GIVING, Mark(DISCARDED, 7))
    assert await marks.read([(0, 7), (1, 7)]) == [Mark(DISCARDED, 7), None]


async def test_marks_of_letters_that_are_gone_go(hot_client: RedisClient) -> None:
    marks = RedisLetterMarks(hot_client)
    for offset in (1, 2, 3):
        await marks.move((0, offset), OPEN, Mark(GIVING, 5))
    await marks.forget(0, 3)
    assert [one is not None for one in await marks.read([(0, 1), (0, 2), (0, 3)])] == [False, False, True]
    await marks.forget(5, 100)
