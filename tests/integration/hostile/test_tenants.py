"""From one tenant nothing of another is read or written, however ids are spelt. T-X5; P18, I16.

The attacker has the same user ids as the victim has, knows the ids of its conversations, and tries every
string field of every frame, and every path, query and body of the admin API.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from qim_streams.wire import CODECS
from qim_streams.wire.codes import TABLE
from qim_streams.wire.examples import CLIENT_EXAMPLES
from qim_streams.wire.frames import CLIENT_FRAMES, SendMessage
from qim_streams.wire.kinds import ListOf, TextId
from tests.integration.hostile.raw_user import RawUser, refusals
from tests.integration.hostile.victim import HALL, TEAM, Victim
from tests.support.battlefield import Battlefield
from tests.support.crafted_ids import aliases, other_ids
from tests.support.honest import Honest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

OWN = "attacker"
# Every spelling in the long form, some of them every day.
STEPS = pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
NAMES = {row.name for row in TABLE}
KEY = re.compile(rb"[A-Za-z0-9._@~:{}-]+")  # what a name of a key is made of
REST_S = 0.3


def id_fields(name: str) -> Iterator[tuple[str, bool]]:
    """The fields of a frame that hold an id, and whether they hold a list of them."""
    for field in CLIENT_FRAMES[name].fields:
        if isinstance(field.kind, TextId):
            yield field.name, False
        elif isinstance(field.kind, ListOf) and isinstance(field.kind.item, TextId):
            yield field.name, True


def crossings(user: RawUser, spelling: list[str]) -> list[dict[str, Any]]:
    """Every frame with every spelling in every field of an id."""
    found = []
    for name, frame in CLIENT_EXAMPLES.items():
        if name == "AUTH":
            continue
        plain = user.plain(frame)
        if name == "SEND_MESSAGE":
            found += [{**plain, "to_user_id": one, "conversation_id": None} for one in spelling]
        for field, many in id_fields(name):
            found += [{**plain, field: [one] if many else one} for one in spelling]
    return found


@STEPS
@pytest.mark.parametrize("subprotocol", list(CODECS))
async def test_no_spelling_of_an_id_leads_to_another_tenant(
    field: Battlefield, honest: Honest, victim: Victim, subprotocol: str, step: int
) -> None:
    """Each that is none is refused by name; each that is one is an id of the attacker's own tenant."""
    async with RawUser(field, OWN, "ann", subprotocol) as ann:
        bad = [one for name in (TEAM, victim.direct) for one in aliases(OWN, victim.tenant, name)]
        answers = await ann.ask(crossings(ann, bad[secrets.randbelow(step) :: step]))
        assert refusals(answers) == {"FIELD_INVALID"}
        assert all(type(one).__name__ == "Error" for one in answers)
        good = [*other_ids(victim.tenant, TEAM), victim.direct, TEAM, HALL, "ben", f"{victim.tenant}.{HALL}"]
        answers = await ann.ask(crossings(ann, good))
        assert refusals(answers) <= NAMES
        await ann.rest(REST_S)
        assert not ann.was_shown(victim.mark)
    victim.untouched()
    odd = [key for key in field.key_names() if not KEY.fullmatch(key)]
    assert not odd, odd


async def test_the_same_ids_in_two_tenants_are_two_things(field: Battlefield, victim: Victim) -> None:
    """And the search for the mark finds it where it is: with the victim's own user."""
    async with (
        RawUser(field, OWN, "ben", device="tablet") as ben,
        RawUser(field, OWN, "ann", device="tablet") as ann,
    ):
        (answer,) = await ann.ask([ann.plain(SendMessage(1, "same-1", b"own words", to_user_id="ben"))])
        assert answer.conversation_id != victim.direct  # type: ignore[union-attr]
        histories = [
            {"t": "PULL_HISTORY", "conversation_id": one, "direction": "newer"}
            for one in (victim.direct, TEAM)
        ]
        for user in (ann, ben):
            await user.ask(
                [*histories, {"t": "PULL_SESSION_LIST"}, {"t": "GROUP_GET", "conversation_id": TEAM}]
            )
            await user.ask(
                [{"t": "JOIN_ROOM", "room_id": HALL}, {"t": "PULL_MAILBOX", "after_seq": -1, "up_to_seq": -1}]
            )
            assert not user.was_shown(victim.mark)
        assert any(b"own words" in data for data in ann.heard + ben.heard) or answer
    victim.untouched()
    for subprotocol in CODECS:
        async with RawUser(field, victim.tenant, "ann", subprotocol, device=f"{victim.mark}-phone") as owner:
            await owner.ask([{"t": "PULL_HISTORY", "conversation_id": TEAM, "direction": "newer"}])
            assert owner.was_shown(victim.mark)
    victim.rest()  # its own user was here


def paths_of(api: httpx.Client) -> list[tuple[str, str]]:
    """Every method and path of the document that has parts of its own."""
    document = api.get("/openapi.json").json()
    return [
        (verb.upper(), path)
        for path, verbs in document["paths"].items()
        for verb in verbs
        if "{" in path and "dead-letters" not in path
    ]


def spelt(path: str, values: dict[str, str]) -> str:
    """The path with each part filled in as it is (`%` of a spelling included)."""
    return re.sub(r"\{(\w+)\}", lambda part: values.get(part[1], "ann"), path)


@STEPS
async def test_no_path_or_body_of_the_api_leads_to_another_tenant(
    field: Battlefield, honest: Honest, victim: Victim, step: int
) -> None:
    """In the name of the attacker's tenant nothing of the victim's is shown, made, changed or removed."""

    def ask() -> None:
        with field.api() as api:
            for method, path in paths_of(api):
                for part in re.findall(r"\{(\w+)\}", path):
                    name = victim.tenant if part == "tenant" else TEAM
                    spellings = [
                        quote(one, safe="") for one in aliases(OWN, victim.tenant, name)[:: 3 * step]
                    ]
                    raw = [
                        f"..%2f{victim.tenant}",
                        f"%2e%2e%2f{victim.tenant}%2fgroups%2f{TEAM}",
                        f"x%0a{victim.tenant}",
                    ]
                    for one in (*spellings, *raw):
                        target = spelt(path, {"tenant": OWN, part: one})
                        answer = api.request(
                            method, target, json={} if method in ("POST", "PUT", "PATCH") else None
                        )
                        assert answer.status_code < 500, (method, target, answer.text[:300])
                        assert victim.mark not in answer.text, (method, target)
            for one in (victim.direct, TEAM, HALL, "ann", f"{victim.tenant}.{TEAM}"):
                for method, path in paths_of(api):
                    if method == "GET":
                        names = dict.fromkeys(("conversation", "user", "room"), one)
                        target = spelt(path, names | {"tenant": OWN})
                        assert victim.mark not in api.get(target).text, target

    await asyncio.to_thread(ask)
    victim.untouched()


async def test_a_token_names_its_tenant_and_no_other(field: Battlefield, victim: Victim) -> None:
    """Whatever a body, a path or an id says: a token is for ids that are ones, in the path's tenant."""

    def ask() -> None:
        with field.api() as api:
            for one in aliases(OWN, victim.tenant, "ann"):
                answer = api.post(f"/v1/tenants/{OWN}/tokens", json={"user_id": one})
                assert (answer.status_code, answer.json()["field"]) == (422, "user_id"), one
            extra = api.post(f"/v1/tenants/{OWN}/tokens", json={"user_id": "ann", "tenant": victim.tenant})
            assert extra.status_code == 422

    await asyncio.to_thread(ask)
