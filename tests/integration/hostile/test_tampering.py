"""Every bit of a token, a cursor and an operator's key flipped: all refused, all alike. T-X4, T-X5; P19."""

import asyncio
import random
import time
from collections.abc import Sequence

import aiohttp
import pytest

from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import Auth, AuthOk, Error
from tests.support.battlefield import Battlefield
from tests.support.honest import Honest
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

AT_ONCE = 8
VISIBLE = {chr(code) for code in range(0x21, 0x7F)}


def flipped(text: str) -> list[str]:
    """The text with each of its bits flipped in turn, as far as that is a text of visible ASCII.

    What is none does not get as far: it is no field of a frame, or no header.
    """
    found = []
    for place, letter in enumerate(text):
        for bit in range(8):
            other = chr(ord(letter) ^ 1 << bit)
            if other in VISIBLE:
                found.append(text[:place] + other + text[place + 1 :])
    return found


def some(all_of: Sequence[str], count: int) -> list[str]:
    """Some of them, and the last ones, whose bits may stand for nothing; the seed is printed."""
    seed = time.time_ns()
    print(f"seed {seed}")
    return [*random.Random(seed).sample(all_of, min(count, len(all_of))), *all_of[-12:]]


async def answers_to(field: Battlefield, tokens: Sequence[str]) -> list[Error | AuthOk]:
    """What the gateway says to each token."""
    found: list[Error | AuthOk] = []
    waiting = list(tokens)

    async def work(http: aiohttp.ClientSession) -> None:
        while waiting:
            token = waiting.pop()
            socket = await http.ws_connect(field.client["gateway_url"], protocols=[MSGPACK.subprotocol])
            await socket.send_bytes(MSGPACK.encode(Auth(1, token, "phone")))
            answer = MSGPACK.decode_server((await socket.receive(60)).data)
            assert isinstance(answer, Error | AuthOk)
            found.append(answer)
            await socket.close()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(work(http) for _ in range(AT_ONCE)))
    return found


async def check_tokens(field: Battlefield, tokens: Sequence[str]) -> None:
    """Each is refused, with the same code, and without a word about what is wrong inside."""
    found = await answers_to(field, tokens)
    assert len(found) == len(tokens)
    assert {(one.name, one.rid) for one in found if isinstance(one, Error)} == {("BAD_TOKEN", 1)}
    assert not [one for one in found if isinstance(one, AuthOk)]
    assert all(len(one.detail) < 100 for one in found if isinstance(one, Error))


async def test_bits_of_a_token(field: Battlefield, honest: Honest) -> None:
    """Those of the signature's end, which decoders pass over, and some of the others."""
    token = field.token("tampered", "ben")
    assert isinstance((await answers_to(field, [token]))[0], AuthOk)
    await check_tokens(field, some(flipped(token), 80))


@pytest.mark.slow
async def test_every_bit_of_a_token(field: Battlefield, honest: Honest) -> None:
    """The long form."""
    await check_tokens(field, flipped(field.token("tampered", "ben")))


async def check_cursors(field: Battlefield, cursor: str, tried: Sequence[str]) -> None:
    """Each is refused as CURSOR_INVALID; three tries are what a connection has."""
    for start in range(0, len(tried), 3):
        async with field.wire("tampered", "cleo") as wire:
            for text in tried[start : start + 3]:
                auth = Auth(wire.next_rid(), wire.token, "phone", text)
                answer = await wire.request(auth, Error)
                assert (answer.name, answer.new_cursor) == ("CURSOR_INVALID", None), (answer, text)
    async with field.wire("tampered", "cleo") as wire:
        await wire.auth(cursor)


async def cursor_of(field: Battlefield, user: str) -> str:
    """A good cursor of a user's phone."""
    async with field.wire("tampered", user) as wire:
        auth = await wire.auth()
        return (await wire.sync_complete(auth.sync_to_seq)).cursor


async def test_bits_of_a_cursor(field: Battlefield, honest: Honest) -> None:
    """And a cursor of another user, of another device, of another tenant; the right one stays good."""
    cursor = await cursor_of(field, "cleo")
    await check_cursors(field, cursor, [*some(flipped(cursor), 40), await cursor_of(field, "ben")])
    for tenant, device in (("tampered", "tablet"), ("tampered2", "phone")):
        async with field.wire(tenant, "cleo", device) as wire:
            auth = Auth(wire.next_rid(), wire.token, device, cursor)
            assert (await wire.request(auth, Error)).name == "CURSOR_INVALID"


@pytest.mark.slow
async def test_every_bit_of_a_cursor(field: Battlefield, honest: Honest) -> None:
    """The long form."""
    cursor = await cursor_of(field, "cleo")
    await check_cursors(field, cursor, flipped(cursor))


async def test_cursors_of_lists_are_places_and_no_keys(field: Battlefield, honest: Honest) -> None:
    """They are not signed: whatever is in them, a list is its user's own, and an odd one is refused."""
    async with field.wire("tampered", "dora") as dora, field.wire("tampered", "emil") as emil:
        for one in (dora, emil):
            await one.go_online()
        await emil.say("secret-1", b"not for dora", conversation=None, to="ben")
        first = await page(dora, "9999999999999.zzz")
        for cursor in some(flipped("1764400000000.d.0123456789abcdef"), 60):
            answer = await page(dora, cursor)
            assert answer is None or answer == first, cursor


async def page(wire: WireClient, cursor: str) -> list[str] | None:
    """The conversations of a page; None: the cursor was refused as such."""
    from qim_streams.wire.frames_sessions import PullSessionList, SessionList

    rid = wire.next_rid()
    await wire.send(PullSessionList(rid, cursor))
    answer = await wire.take(object, lambda one: getattr(one, "rid", None) == rid)  # type: ignore[type-abstract]
    if isinstance(answer, SessionList):
        return [row.conversation_id for row in answer.rows]
    assert isinstance(answer, Error)
    assert answer.name == "FIELD_INVALID"
    return None


@pytest.mark.parametrize("count", [100, pytest.param(100_000, marks=pytest.mark.slow)], ids=["some", "all"])
async def test_bits_of_an_operators_key(field: Battlefield, honest: Honest, count: int) -> None:
    """Each is refused with the same answer, in either header."""
    key = str(field.client["admin_api_key"])

    def ask() -> set[tuple[int, str]]:
        found = set()
        with field.api(key="") as api:
            for place, text in enumerate(some(flipped(key), count)):
                headers = {"X-Api-Key": text} if place % 2 else {"Authorization": f"Bearer {text}"}
                api.headers.pop("Authorization", None)
                answer = api.get("/v1/tenants", headers=headers)
                found.add((answer.status_code, answer.text))
        return found

    (only,) = await asyncio.to_thread(ask)
    assert only[0] == 401
    assert "API_KEY_REQUIRED" in only[1]
