"""Texts that mean something to a store, a shell, a page or a terminal are texts. T-X5; P17, P18.

Through every field that takes text: ids refuse them, free texts come back as they were given, and nothing
else has changed: not a key, not a row of another tenant, not a table.
"""

import asyncio
import secrets
from typing import Any

import pytest

from qim_streams.wire.examples import CLIENT_EXAMPLES
from qim_streams.wire.frames import Error, SendMessage
from qim_streams.wire.frames_group import GroupCreate, GroupUpdate
from qim_streams.wire.frames_rooms import CreateRoom
from tests.integration.hostile.raw_user import RawUser, refusals
from tests.integration.hostile.test_tenants import KEY, STEPS, crossings
from tests.integration.hostile.victim import Victim
from tests.support.battlefield import Battlefield
from tests.support.crafted_ids import INJECTIONS
from tests.support.honest import Honest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

OWN = "injector"
IDS = [
    one for one in INJECTIONS if one not in ("NaN", "Infinity", "1e999", "null", "undefined", "true", "0x10")
]
NAMES = [one for one in INJECTIONS if one.isprintable()]


def text_fields(user: RawUser) -> list[dict[str, Any]]:
    """Every field of every frame that is text but no id, with every payload."""
    found = []
    for name, frame in CLIENT_EXAMPLES.items():
        if name in ("AUTH", "SEND_MESSAGE", "EDIT_MESSAGE", "SEND_ROOM", "TYPING"):
            continue  # their texts are bodies and ids
        plain = user.plain(frame)
        texts = [field for field, value in plain.items() if isinstance(value, str) and field != "t"]
        texts += {"PULL_SESSION_LIST": ["cursor", "only"], "SET_PUSH_SETTINGS": ["time_zone"]}.get(name, [])
        found += [{**plain, field: one} for field in dict.fromkeys(texts) for one in INJECTIONS]
    return found


@STEPS
async def test_texts_in_every_field_of_every_frame(
    field: Battlefield, honest: Honest, victim: Victim, step: int
) -> None:
    """Ids refuse what is none; whatever other fields make of it, nobody else's rows know of it."""
    before = field.lasting_names()
    async with RawUser(field, OWN, "ann") as ann:
        answers = await ann.ask(crossings(ann, IDS[secrets.randbelow(step) :: step]))
        assert refusals(answers) == {"FIELD_INVALID"}
        assert all(isinstance(one, Error) for one in answers)
        answers = await ann.ask(text_fields(ann))
        assert refusals(answers) - {"FIELD_INVALID"} <= {
            "NO_CONVERSATION", "NOT_MEMBER", "NO_ROOM", "NOT_ALLOWED", "RATE_LIMITED", "CONVERSATION_EXISTS",
            "ROOM_EXISTS", "NOT_JOINED", "TOO_MANY_IN_FLIGHT",
        }, refusals(answers)  # fmt: skip
        assert not ann.was_shown(victim.mark)
    victim.untouched()
    after = field.key_names()
    assert before - {*after} == set(), "keys are gone"
    assert [key for key in after if not KEY.fullmatch(key)] == []


async def test_free_texts_come_back_as_they_were(field: Battlefield, honest: Honest, victim: Victim) -> None:
    """Names of groups and rooms, bodies of messages: to the last byte."""
    run = secrets.token_hex(4)
    async with RawUser(field, OWN, f"a{run}") as ann:
        made = [ann.plain(GroupCreate(1, ["ben"], f"g{run}.{at}", one)) for at, one in enumerate(NAMES)]
        assert [one.name for one in await ann.ask(made)] == list(NAMES)  # type: ignore[union-attr]
        changed = [ann.plain(GroupUpdate(1, f"g{run}.0", one)) for one in NAMES[::-1]]
        for one, answer in zip(NAMES[::-1], [(await ann.ask([each]))[0] for each in changed], strict=True):
            assert answer.name == one  # type: ignore[union-attr]
        said = [
            ann.plain(SendMessage(1, f"m{at}", one.encode(), to_user_id=f"b{run}"))
            for at, one in enumerate(INJECTIONS)
        ]
        acks = await ann.ask(said)
        assert not refusals(acks)
        rooms = [ann.plain(CreateRoom(1, f"r{run}.{at}", one)) for at, one in enumerate(NAMES[:6])]
        assert [one.name for one in await ann.ask(rooms)] == list(NAMES[:6])  # type: ignore[union-attr]
        chat = acks[0].conversation_id  # type: ignore[union-attr]
        (page,) = await ann.ask([{"t": "PULL_HISTORY", "conversation_id": chat, "direction": "newer"}])
        by_seq = {ack.conversation_seq: text for ack, text in zip(acks, INJECTIONS, strict=True)}  # type: ignore[union-attr]
        assert {one.conversation_seq: one.body.decode() for one in page.messages} == by_seq  # type: ignore[union-attr]
    victim.untouched()


@STEPS
async def test_texts_in_the_api(field: Battlefield, honest: Honest, victim: Victim, step: int) -> None:
    """Queries and bodies: names as they were given, anything else refused by field; no 5xx."""

    def ask() -> None:
        with field.api() as api:
            base = f"/v1/tenants/{OWN}"
            group = f"{base}/groups/api-{secrets.token_hex(4)}"
            api.post(f"{base}/groups", json={"conversation_id": group.rpartition("/")[2], "members": ["ann"]})
            for text in INJECTIONS[secrets.randbelow(step) :: step]:
                answer = api.patch(group, json={"name": text})
                assert answer.status_code == (200 if text.isprintable() else 422), (text, answer.text)
                if text.isprintable():
                    assert answer.json()["name"] == text
                    assert api.get(group).json()["name"] == text
                for path, query in (
                    (f"{base}/users", "contains"), (f"{base}/users", "cursor"),
                    (f"{base}/conversations", "contains"), (f"{base}/conversations", "cursor"),
                    (f"{base}/users/ann/sessions", "cursor"), (f"{base}/rooms", "after_room_id"),
                    ("/v1/dead-letters", "cursor"), ("/v1/dead-letters", "contains"),
                    ("/v1/tables/presence/rows", "next_after"), (f"{base}/direct", "user_id"),
                ):  # fmt: skip
                    answer = api.get(path, params={query: text})
                    assert answer.status_code < 500, (path, query, text, answer.text)
                    assert victim.mark not in answer.text
                for body in ({"multi_login": text}, {"fanout_per_s": text}):
                    assert api.put(f"{base}/rules", json=body).status_code == 422, body

    await asyncio.to_thread(ask)
    victim.untouched()
