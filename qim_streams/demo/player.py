"""Plays a room: its members join, write and leave through real clients; then every mailbox is read.

The most active users are online all the time and receive by push. Other authors connect to write and
go. At the end every user who was not online all the time reads his whole mailbox with a new device. A
host of our own makes the group and adds and removes members, because the trace does not say who did.

Invariants: changes and messages take effect in trace order where it matters: a change is answered
before the messages after it are sent, and all messages before a change are acknowledged before it is
made, so the expected mailboxes follow from the trace alone. Messages between two changes are in flight
together; their order among each other is what the acks say.

Spec: §3 to §7.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from qim_streams.client import Delivery, QimClient, SendReceipt
from qim_streams.demo.check import Sent, Verdict, judge
from qim_streams.demo.people import People, Pool
from qim_streams.demo.ports import Say
from qim_streams.demo.traces import SENDS, Trace, TraceRow, body_of, expected_mailboxes, steps
from qim_streams.errors import QimError
from qim_streams.wire.frames import Event

SAY_EVERY_S = 2.0
ASK_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """`live` users stay online; `pool` other authors may; `readers` mailboxes are read at a time.

    `speed`: how many times faster than in reality; 0 = as fast as the answers come.
    """

    live: int = 40
    pool: int = 16
    readers: int = 8
    speed: float = 0.0
    answer_timeout_s: float = 60.0
    deliver_timeout_s: float = 60.0


@dataclass(slots=True)
class RoomReport:
    """What came of a room."""

    name: str
    conversation_id: str
    users: int = 0
    not_played: int = 0
    messages: int = 0
    acked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    pushed: Verdict = field(default_factory=Verdict)
    pulled: Verdict = field(default_factory=Verdict)
    wire_duplicates: int = 0
    play_s: float = 0.0
    read_s: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether every message was acknowledged and every mailbox is exact."""
        return self.acked == self.messages and self.pushed.clean and self.pulled.clean


class Recorder:
    """Keeps the events of one client."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        self.events.extend(one for one in deliveries if type(one) is Event)


class RoomPlayer:
    """Plays one trace in one new group."""

    def __init__(self, trace: Trace, people: People, options: PlayOptions, say: Say) -> None:
        self._trace, self._people, self._options, self._say = trace, people, options, say
        self._room = f"{trace.name}.{people.run}"
        self._expected = expected_mailboxes(trace)
        self._sent: dict[bytes, Sent] = {}
        self._live: dict[int, tuple[QimClient, Recorder]] = {}
        self._pool = Pool(people, options.pool)
        self._host = people.client(self._name("host"), "host")
        self._open_sends = 0
        self._all_settled = asyncio.Event()
        self._members = 0
        self._said_s = self._began_s = 0.0
        messages = [row for row in trace.rows if row.kind in SENDS]
        self._speakers = Counter(row.user for row in messages)
        self.report = RoomReport(
            trace.name,
            self._room,
            users=len(self._expected),
            not_played=len([row for row in trace.rows if row.kind in ("edit", "recall", "reaction")]),
            messages=len(messages),
        )

    async def play(self) -> RoomReport:
        """Play, read, judge. TimeoutError when acks stop coming; ClientStopped when a client must."""
        loop = asyncio.get_running_loop()
        self._began_s = loop.time()
        await self._open()
        await self._host.groups.create(conversation_id=self._room, name=self._trace.name)
        for step in steps(self._trace):
            await self._change(step.changes)
            await self._send(step.sends)
            await self._pool.trim()
        await self._pool.close()
        self.report.play_s = loop.time() - self._began_s
        await self._judge_live()
        began_s = loop.time()
        await self._read_rest()
        self.report.read_s = loop.time() - began_s
        return self.report

    # -- playing

    async def _open(self) -> None:
        for user, _ in self._speakers.most_common(self._options.live):
            recorder = Recorder()
            self._live[user] = (self._people.client(self._name(user), "live", recorder), recorder)
        await asyncio.gather(self._host.connect(), *(client.connect() for client, _ in self._live.values()))

    def _name(self, user: int | str) -> str:
        return f"{self._trace.name}.{user}"

    async def _change(self, changes: Sequence[tuple[int, bool]]) -> None:
        """Changes of one kind that follow each other go in one call."""
        batch: list[int] = []
        for index, (user, joins) in enumerate(changes):
            batch.append(user)
            if index + 1 == len(changes) or changes[index + 1][1] != joins:
                users = [self._people.user(self._name(one)) for one in batch]
                call = self._host.groups.add if joins else self._host.groups.remove
                self._members = (await call(self._room, users)).members_active
                batch.clear()

    async def _send(self, rows: Sequence[TraceRow]) -> None:
        self._open_sends = len(rows)
        self._all_settled.clear()
        for row in rows:
            await self._pace(row)
            self._submit(row)
        if rows:
            async with asyncio.timeout(self._options.answer_timeout_s):
                await self._all_settled.wait()
        self._progress()

    async def _pace(self, row: TraceRow) -> None:
        if self._options.speed > 0:
            due_s = self._began_s + row.at_ms / 1_000 / self._options.speed
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())

    def _submit(self, row: TraceRow) -> None:
        live = self._live.get(row.user)
        client = live[0] if live is not None else self._pool.get(self._name(row.user))
        body = body_of(row)

        def settled(result: SendReceipt | QimError) -> None:
            self._settle(row, body, result)

        client.submit(body, settled, conversation_id=self._room, client_message_id=f"row-{row.row}")

    def _settle(self, row: TraceRow, body: bytes, result: SendReceipt | QimError) -> None:
        if isinstance(result, SendReceipt):
            sender = self._people.user(self._name(row.user))
            self._sent[result.message_id] = Sent(row.row, result.conversation_seq, sender, body)
            self.report.acked += 1
        else:
            self.report.refused[getattr(result, "code", type(result).__name__)] += 1
        self._open_sends -= 1
        if self._open_sends == 0:
            self._all_settled.set()

    def _progress(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._say(
                f"{self._trace.name}: {self.report.acked:,} of {self.report.messages:,} messages "
                f"acknowledged, {self._members - 1} members"
            )

    # -- judging

    async def _judge_live(self) -> None:
        """Wait for the last pushes of those who were online, then judge and close them."""

        async def one(user: int, client: QimClient, recorder: Recorder) -> None:
            await self._wait_for(client, recorder, len(self._expected.get(user, ())))
            self._take(user, client, recorder, self.report.pushed)
            await self._people.close(client)

        await asyncio.gather(*(one(user, *pair) for user, pair in self._live.items()))
        await self._people.close(self._host)

    async def _read_rest(self) -> None:
        """Everybody else reads his mailbox from its beginning, a few at a time."""
        rest = iter(sorted(self._expected.keys() - self._live.keys()))

        async def reader() -> None:
            for user in rest:
                await self._read(user)

        await asyncio.gather(*(reader() for _ in range(self._options.readers)))

    async def _read(self, user: int) -> None:
        recorder = Recorder()
        client = self._people.client(self._name(user), "reader", recorder, first_sync="mailbox")
        await client.connect(self._options.answer_timeout_s)
        await self._wait_for(client, recorder, len(self._expected[user]))
        self._take(user, client, recorder, self.report.pulled)
        await self._people.close(client)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._say(
                f"{self._trace.name}: {self.report.pulled.mailboxes} mailboxes read, "
                f"{self.report.pulled.delivered:,} entries"
            )

    async def _wait_for(self, client: QimClient, recorder: Recorder, expected: int) -> None:
        """Until so many events came, or nothing came for `deliver_timeout_s`; the judge counts.

        When nothing comes for a while the mailbox is asked once: the last push may be lost.
        """
        loop = asyncio.get_running_loop()
        before, since_s, asked = -1, 0.0, False
        while len(recorder.events) < expected:
            if len(recorder.events) > before:
                before, since_s, asked = len(recorder.events), loop.time(), False
            silent_s = loop.time() - since_s
            if silent_s > self._options.deliver_timeout_s:
                return
            if silent_s > ASK_AFTER_S and not asked:
                asked = True
                await client.checkpoint()
            await asyncio.sleep(0.05)

    def _take(self, user: int, client: QimClient, recorder: Recorder, verdict: Verdict) -> None:
        name = self._people.user(self._name(user))
        verdict.add(judge(name, self._expected.get(user, ()), recorder.events, self._sent))
        self.report.wire_duplicates += client.session.inbox.counters.wire_duplicates
        recorder.events = []
