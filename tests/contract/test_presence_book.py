"""The book of presence: both implementations, against the same sentences and against each other.

Spec: §6.
"""

import random
import secrets
from collections.abc import Callable

import pytest

from qim_streams.presence.book import PresenceBook, Seen, Sight
from qim_streams.presence.redis_book import RedisPresenceBook
from qim_streams.redis_tier import RedisClient
from qim_streams.sessions.ports import SessionUser
from qim_streams.testing.memory_presence import MemoryPresenceBook

T = 4_000_000_000_000  # ahead of the server's clock, by which keys are dropped
MakeUser = Callable[[str, int], SessionUser]


@pytest.fixture(params=["memory", "redis"])
def book(request: pytest.FixtureRequest) -> PresenceBook:
    if request.param == "memory":
        return MemoryPresenceBook()
    return RedisPresenceBook(request.getfixturevalue("hot_client"))


@pytest.fixture
def user() -> MakeUser:
    tenant = f"p{secrets.token_hex(4)}"
    return lambda name, ordinal: SessionUser(tenant, name, ordinal)


async def test_nobody_was_ever_seen(book: PresenceBook, user: MakeUser) -> None:
    assert await book.seen([user("ann", 70), user("ben", 71)], T) == [Seen(False), Seen(False)]
    assert await book.seen([], T) == []


async def test_first_device_comes_and_last_one_goes(book: PresenceBook, user: MakeUser) -> None:
    ann = user("ann", 70)
    (came, again, second) = await book.note(
        [Sight(ann, "phone", T + 100), Sight(ann, "phone", T + 150), Sight(ann, "pad", T + 150)], T
    )
    assert (came, again, second) == (Seen(True), None, None)
    assert await book.note([Sight(ann, "phone", 0)], T + 10) == [None]
    assert await book.note([Sight(ann, "pad", 0)], T + 20) == [Seen(False, T + 20)]
    assert await book.note([Sight(ann, "pad", 0)], T + 30) == [None], "it was gone already"
    assert await book.seen([ann], T + 40) == [Seen(False, T + 20)]


async def test_a_note_that_ran_out_counts_for_nothing(book: PresenceBook, user: MakeUser) -> None:
    ann = user("ann", 70)
    await book.note([Sight(ann, "phone", T + 100)], T)
    assert await book.seen([ann], T + 99) == [Seen(True)]
    assert await book.seen([ann], T + 100) == [Seen(False, T + 100)], "last seen when it ran out"
    assert await book.note([Sight(ann, "phone", T + 500)], T + 200) == [Seen(True)], "back again"


async def test_an_invisible_user_is_offline_to_everybody(book: PresenceBook, user: MakeUser) -> None:
    ann = user("ann", 70)
    await book.note([Sight(ann, "phone", T + 1_000)], T)
    assert await book.set_visible(ann, False, T + 10) == Seen(False, T + 10)
    assert await book.set_visible(ann, False, T + 20) is None
    assert await book.note([Sight(ann, "pad", T + 1_000)], T + 30) == [None]
    assert await book.note([Sight(ann, "pad", 0)], T + 40) == [None]
    assert await book.seen([ann], T + 50) == [Seen(False, T + 10)]
    assert await book.set_visible(ann, True, T + 60) == Seen(True)
    assert await book.note([Sight(ann, "phone", 0)], T + 70) == [Seen(False, T + 70)]
    assert await book.set_visible(ann, False, T + 80) is None, "offline and invisible look the same"
    assert await book.seen([ann], T + 90) == [Seen(False, T + 70)]


async def test_users_and_tenants_are_apart(book: PresenceBook, user: MakeUser) -> None:
    ann, ben = user("ann", 70), user("ben", 134)  # of one lane
    await book.note([Sight(ann, "phone", T + 1_000)], T)
    stranger = ann._replace(tenant_id=ann.tenant_id + "x")
    assert await book.seen([ben, ann, stranger], T + 1) == [Seen(False), Seen(True), Seen(False)]


async def test_both_say_the_same_of_random_lives(hot_client: RedisClient, user: MakeUser) -> None:
    seed = secrets.randbelow(1_000_000)
    print(f"seed {seed}")
    draw, users = random.Random(seed), [user(f"u{n}", 64 + 37 * n) for n in range(3)]
    books: list[PresenceBook] = [MemoryPresenceBook(), RedisPresenceBook(hot_client)]
    now = T
    for _ in range(300):
        now += draw.choice([1, 10, 200])
        one, device = draw.choice(users), draw.choice(["phone", "pad"])
        action = draw.random()
        answers: list[object] = []
        for book in books:
            if action < 0.7:
                until = 0 if action < 0.3 else now + 150
                answers.append(await book.note([Sight(one, device, until)], now))
            elif action < 0.8:
                answers.append(await book.set_visible(one, action < 0.75, now))
            else:
                answers.append(await book.seen(users, now))
        assert answers[0] == answers[1], (action, one, device, now)
