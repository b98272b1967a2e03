"""Session lists under kills: what every user's list, badge and devices say is the formula, user by user.

Users with two devices each talk, recall, read, mute, pin and delete while processes die: who projects lists,
who carries states into the archive, who writes mailboxes, who serves the users. Then everything is quiet, and
each list is held against the oracle, which shares no code with them.

Scenarios F5 F13 F14 F19, T-K2, T-K3, T-G3; promises of the session list. Spec: §9.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from confluent_kafka import Producer

from qim_streams.client import ClientOptions, QimClient
from qim_streams.client.badge_book import Badge
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import AdmissionRefused
from qim_streams.testing.unread_oracle import Facts, Marks, Said, expected_totals, expected_unread
from qim_streams.wire.frames_sessions import SessionRow
from tests.chaos.conftest import StartStack, new_seed
from tests.support.logs import DISPATCH, read_topic
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

HEAL_S: Final = 180.0
BACK_S: Final = 180.0  # one that dies often is started again later each time
KILLS: Final = 12  # of the long form
FIRED_S: Final = 300.0
HOUR_MS: Final = 3_600_000
# The points of who keeps the lists, and which hit of a process's life kills it: it gets somewhere in between.
# One is left to others (`test_failpoints`, the compactor's test): it is passed when nothing large waits any
# more, which never happens while everybody writes to large groups.
LISTS: Final = {"rows_partial": 1, "rows_written": 3, "checkpoint_moved": 2}
MAILBOX: Final = {
    "dispatch_polled": 7,
    "bitmap_loaded": 6,
    "entries_partial": 3,
    "entries_durable": 8,
    "pages_sent": 2,
    "progress_marked": 3,
    "slice_written": 4,
    "watermark_advanced": 11,
    "pushed": 5,
}
PAUSE_S: Final = 0.02
PEERS_PAUSE_S: Final = 0.1
DEVICES: Final = ("phone", "laptop")
OPTIONS: Final = ClientOptions(backoff_base_ms=50, backoff_cap_ms=500, follow_endpoint=False)


class Talk:
    """Users, their devices and conversations, and the plain facts of what they did."""

    def __init__(self, address: StackAddress, seed: int, users: int, groups: int, silent: int) -> None:
        """`silent`: members of every group besides, who do nothing."""
        print(f"session states: seed {seed}")
        self.address, self.chance = address, random.Random(seed)
        self.users = [f"s{seed}u{number}" for number in range(users)]
        self.silent = [f"s{seed}n{number}" for number in range(silent)]
        self.chats = [f"s{seed}g{number}" for number in range(groups)]
        self.clients: dict[tuple[str, str], QimClient] = {}
        self.facts = {
            chat: Facts(marks={user: Marks(join_seq=1) for user in self.users}) for chat in self.chats
        }
        self.pinned: dict[tuple[str, str], bool] = {}
        self.done = 0
        self._stopping = False
        self._jobs: list[asyncio.Task[None]] = []

    # -- life

    async def begin(self) -> None:
        """Everybody is online and in every group."""
        for user in self.users:
            for device in DEVICES:
                client = QimClient(
                    self.address.require_url(),
                    self.address.token(user),
                    device,
                    options=OPTIONS,
                    on_deliveries=lambda _: None,  # what matters here is what lists say
                )
                self.clients[user, device] = client
                client.start()
        for client in self.clients.values():
            await client.wait_online(HEAL_S)
        owner = self.clients[self.users[0], DEVICES[0]]
        for chat in self.chats:
            await owner.groups.create([*self.users[1:], *self.silent], conversation_id=chat)

    async def end(self) -> None:
        """Everybody goes away."""
        for client in self.clients.values():
            await client.close()

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Everybody does something all the time; at the end what was begun is finished."""
        self._stopping = False
        self._jobs = jobs = [asyncio.create_task(self._live(user)) for user in self.users]
        try:
            yield
            self._stopping = True
            async with asyncio.timeout(HEAL_S):
                await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def more(self, count: int) -> None:
        """Until so many more things were done. Whoever cannot go on says why, at once."""
        wanted = self.done + count

        def is_done() -> bool:
            for job in self._jobs:
                if job.done():
                    job.result()
            return self.done >= wanted

        await eventually(is_done, HEAL_S, f"{count} more actions")

    # -- what a user does

    async def _live(self, user: str) -> None:
        acts: list[Callable[[str, str, QimClient], Awaitable[None]]] = [
            self._say, self._say, self._say, self._read, self._read,
            self._mute, self._pin, self._delete, self._recall,
        ]  # fmt: skip
        while not self._stopping:
            client = self.clients[user, self.chance.choice(DEVICES)]
            await self.chance.choice(acts)(user, self.chance.choice(self.chats), client)
            self.done += 1
            await asyncio.sleep(PAUSE_S)

    async def _say(self, user: str, chat: str, client: QimClient) -> None:
        receipt = await client.send(b"hello", conversation_id=chat, timeout_s=HEAL_S)
        self.facts[chat].said.append(Said(receipt.conversation_seq, user))

    async def _recall(self, user: str, chat: str, client: QimClient) -> None:
        mine = [
            one
            for one in self.facts[chat].said
            if one.sender == user and not one.operation and not one.recalled
        ]
        if mine:
            target = self.chance.choice(mine[-5:])
            try:
                receipt = await client.recall(chat, target.seq, timeout_s=HEAL_S)
            except AdmissionRefused as refused:
                if refused.code != "CHANGE_TOO_LATE":
                    raise
                return  # it was said long ago, when kills and a busy machine made all this slow: it stands
            target.recalled = True
            self.facts[chat].said.append(Said(receipt.conversation_seq, user, operation=True))

    async def _read(self, user: str, chat: str, client: QimClient) -> None:
        if self._known(chat):
            seq = self.chance.randrange(1, self._known(chat) + 1)
            row = await client.sessions.mark_read(chat, seq)
            marks = self.facts[chat].marks[user]
            marks.read_seq = max(marks.read_seq, seq)
            assert row.read_seq >= marks.read_seq

    async def _mute(self, user: str, chat: str, client: QimClient) -> None:
        muted = self.chance.random() < 0.5
        assert (await client.sessions.set_mute(chat, muted)).muted == muted
        self.facts[chat].marks[user].muted = muted

    async def _pin(self, user: str, chat: str, client: QimClient) -> None:
        pinned = self.chance.random() < 0.5
        await client.sessions.set_pin(chat, pinned)
        self.pinned[user, chat] = pinned

    async def _delete(self, user: str, chat: str, client: QimClient) -> None:
        if self._known(chat) and self.chance.random() < 0.3:
            seq = self.chance.randrange(1, self._known(chat) + 1)
            await client.sessions.delete_messages(chat, [seq])
            self.facts[chat].marks[user].deleted.add(seq)

    def _known(self, chat: str) -> int:
        """The highest number that somebody has a receipt for."""
        return max((one.seq for one in self.facts[chat].said), default=0)

    # -- the judge

    async def check(self) -> None:
        """Lists and badges of everybody, on both devices, are what the facts say; at last."""
        for facts in self.facts.values():
            facts.said.sort(key=lambda one: one.seq)
        problems: list[str] = []

        async def right() -> bool:
            problems[:] = [line for user in self.users for line in await self._problems(user)]
            return not problems

        try:
            await eventually(right, HEAL_S, "lists to be what the facts say")
        except AssertionError:
            raise AssertionError("\n".join(problems[:20])) from None

    async def _problems(self, user: str) -> list[str]:
        found = []
        total, muted = expected_totals(self.facts, user)
        exact = all(expected_unread(one, user)[1] for one in self.facts.values())
        for device in DEVICES:
            sessions = self.clients[user, device].sessions
            rows = {row.conversation_id: row for row in await sessions.load()}
            if set(rows) != set(self.chats):
                found.append(f"{user} {device}: lists {sorted(rows)}")
            found += [line for chat in self.chats if chat in rows for line in self._of_row(user, rows[chat])]
            badge = await sessions.badge.refresh()
            if badge != Badge(total - muted, 0, muted, exact):
                found.append(f"{user} {device}: {badge}, expected {total - muted} and {muted} muted")
        return found

    def _of_row(self, user: str, row: SessionRow) -> list[str]:
        facts = self.facts[row.conversation_id]
        marks = facts.marks[user]
        pinned = self.pinned.get((user, row.conversation_id), False)
        seen = (row.unread, row.unread_exact), row.read_seq, row.muted, row.pinned_at > 0, row.latest_seq
        wanted = expected_unread(facts, user), marks.read_seq, marks.muted, pinned, facts.head
        return [] if seen == wanted else [f"{user} in {row.conversation_id}: {seen}, expected {wanted}"]


@asynccontextmanager
async def talking(stack: StackProcess, users: int, groups: int, silent: int = 0) -> AsyncIterator[Talk]:
    """A talk over a stack; when nothing is broken any more, it is judged."""
    talk = Talk(stack.address(), new_seed(), users, groups, silent)
    try:
        await talk.begin()
        async with talk.going_on():
            await talk.more(25)
            yield talk
            await asyncio.to_thread(stack.wait_all_ready)
            await talk.more(25)
        await talk.check()
    finally:
        await talk.end()


async def killed(stack: StackProcess, *roles: str) -> None:
    """SIGKILL to all of them at once, until they are back."""
    pids = {role: stack.kill(role) for role in roles}
    for role, pid in pids.items():
        await asyncio.to_thread(stack.wait_restarted, role, pid, BACK_S)


async def test_lists_after_the_projection_and_the_keeper_were_killed(
    common_stack: StackProcess, figures: dict[str, Any]
) -> None:
    """qsession and the archiver (StateKeeper) die under reads, mutes, pins, deletes and recalls."""
    async with talking(common_stack, users=4, groups=3) as talk:
        await killed(common_stack, "qsession", "archiver")
    figures["actions"] = talk.done


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("projection", ["qsession", "mailbox"])
async def test_lists_after_many_kills(
    start_stack: StartStack, figures: dict[str, Any], projection: str
) -> None:
    """Some role dies again and again, two at times; with either keeper of the lists."""
    roles = ["mailbox", "archiver", "gateway", "fanout", *(["qsession"] if projection == "qsession" else [])]
    env = {"QIM_SESSION_PROJECTION": projection}
    stack = start_stack(f"lists-{projection}", "--fsync", "always", env=env)
    chance = random.Random(new_seed())
    async with talking(stack, users=8, groups=6) as talk:
        for _ in range(KILLS):
            await killed(stack, *chance.sample(roles, chance.choice((1, 1, 2))))
            await talk.more(60)
    figures["actions"] = talk.done


@asynccontextmanager
async def direct_chats(stack: StackProcess, seed: int, peers: int) -> AsyncIterator[None]:
    """Somebody of whom no list is looked at talks to many, all the time: rows of several lanes at once."""
    address = stack.address()
    client = QimClient(
        address.require_url(), address.token(f"s{seed}chatty"), "phone", options=OPTIONS,
        on_deliveries=lambda _: None,
    )  # fmt: skip

    async def talk() -> None:
        number = 0
        while True:
            number += 1
            await client.send(b"hello", to_user_id=f"s{seed}peer{number % peers}", timeout_s=HEAL_S)
            await asyncio.sleep(PEERS_PAUSE_S)

    client.start()
    talking = asyncio.create_task(talk())
    try:
        yield
        if talking.done():
            talking.result()
    finally:
        talking.cancel()
        await asyncio.wait([talking])
        await client.close()


def lose_projection(url: str) -> None:
    """Delete everything that the projection ever wrote; what users did with conversations stays."""
    with redis.Redis.from_url(url) as client:
        for pattern in ("{q:*}:convs:*", "{q:*}:wide:*", "{q:*}:reg", "{q:*}:built", "{qp:*", "{qt:*"):
            for key in client.scan_iter(match=pattern, count=1_000):
                client.delete(key)


def replay_last_hour(brokers: str, times: int) -> int:
    """Append the dispatches of the last hour to their log again; how many records that were."""
    since = time.time() * 1_000 - HOUR_MS
    found = [one for one in read_topic(brokers, DISPATCH) if one.timestamp()[1] >= since]
    producer = Producer({"bootstrap.servers": brokers})
    for one in found * times:
        producer.produce(DISPATCH, one.value(), one.key(), one.partition())
        producer.poll(0)
    assert producer.flush(60) == 0
    return len(found) * times


@pytest.mark.slow
@pytest.mark.timeout(530)
@pytest.mark.parametrize("projection", ["qsession", "mailbox"])
async def test_lists_after_a_kill_at_every_point_a_loss_and_a_replay(
    start_stack: StartStack, tmp_path: Path, figures: dict[str, Any], projection: str
) -> None:
    """T-K2, T-G3: whoever keeps the lists, and the mailbox worker, die once at each of their points; then the
    projection is deleted, and the last hour of dispatches comes twice more. All of it while users go on."""
    (latch := tmp_path / "latch").mkdir()
    # The compactor polls nothing, and its own test has the groups that are large enough for a wide one.
    lists = LISTS | ({"dispatch_polled": 4, "wide_partial": 1} if projection == "qsession" else {})
    points = [f"qsession.{name}:{nth}:kill" for name, nth in lists.items()]
    points += [f"mailbox.{name}:{nth}:kill" for name, nth in MAILBOX.items()]
    env = {
        "QIM_SESSION_PROJECTION": projection,
        "QIM_FAILPOINT": ",".join(points),
        "QIM_FAILPOINT_LATCH": str(latch),
        # The groups are large records in each shard, and wide in lists.
        "QIM_MAILBOX_SHARDS": "4",
        "QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "3",
        "QIM_SESSION_ROWS_PER_DISPATCH_MAX": "2",
    }
    stack = start_stack(f"points-{projection}", "--fsync", "always", env=env)
    client = stack.client
    async with direct_chats(stack, new_seed(), 24), talking(stack, users=5, groups=3, silent=19) as talk:
        deadline_s = time.monotonic() + FIRED_S
        while missing := [one for one in points if not (latch / f"{one.split(':')[0]}.spent").exists()]:
            assert time.monotonic() < deadline_s, f"did not fire: {missing}"
            await talk.more(5)
        await asyncio.to_thread(stack.wait_all_ready)
        await asyncio.to_thread(lose_projection, client["redis_url"])
        await talk.more(50)
        await asyncio.to_thread(stack.wait_all_ready)
        replayed = await asyncio.to_thread(replay_last_hour, client["brokers"], 2)
        await talk.more(50)
    figures |= {"actions": talk.done, "points": len(points), "dispatches again": replayed}
