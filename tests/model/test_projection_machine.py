"""The session projection against the plain fold: replays, cuts, crashes between any two steps, lost stores.

Hypothesis writes the log of two shards (messages of small and wide conversations, whose members come and go,
repeats, other events), cuts it into sweeps, lets the worker die before or after any call to the store and
freezes it while another one works, loses checkpoints, rows or everything, and moves the log's beginning.
Mailboxes are an oracle of their own: whatever is at or below W can be read there.

Held at every moment: no row says more than the log does. Held at every reading: a list that the projection
does not vouch for shows, once rebuilt, all that is in the mailbox. Held whenever everything is handled, and
at the end: rows equal the fold, for users that the projection vouches for as they are, for all others after
their rebuild; and every conversation of a user was registered.

T-G3, F5's projection (monotonic and complete), I2. Spec: §9.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap

from qim_streams import ids
from qim_streams.errors import Outcome, QimError, StoreUnavailable
from qim_streams.hlc import encode
from qim_streams.mailbox.entries import recipient_entry
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.mailbox.ports import StoredEntry, WatermarkState
from qim_streams.membership import bitmaps
from qim_streams.records import KIND_MESSAGE, GroupDispatch, pack_ordinals
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.projection import SessionProjection
from qim_streams.sessions.projection_ports import Advance, CoverOf
from qim_streams.sessions.projection_records import Checkpoint, Cover, SessionRow, Slot, activity_of
from qim_streams.sessions.session_rebuild import SessionRebuild

TENANT, SHARDS, WIDE_ABOVE = "acme", 2, 3
USERS = tuple(range(12))  # an even ordinal lives in shard 0, an odd one in shard 1
SMALL, WIDE = ("c1", "c2", "c3"), ("w1", "w2")
SHARD = st.integers(0, SHARDS - 1)
T = TypeVar("T")


class Crash(BaseException):
    """The worker is gone."""


class Died(Exception):
    """The worker ended itself."""


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Batch(NamedTuple):
    """A batch of the log."""

    partition: int
    records: Sequence[Record]
    previous_offset: int


class FaultyProjection(MemoryProjection):
    """A store whose `at`-th call from now kills its caller (before or after it) or loses the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.at: int | None = None
        self.kind = ""
        self.may_go_on = asyncio.Event()  # what works in the background

    async def _call(self, call: Awaitable[T]) -> T:
        due = self.at == 0
        self.at = None if due or self.at is None else self.at - 1
        if due and self.kind == "before":
            call.close()  # type: ignore[attr-defined]
            raise Crash
        answer = await call
        if due and self.kind == "after":
            raise Crash
        if due:
            raise StoreUnavailable("the answer is lost", Outcome.UNKNOWN)
        return answer

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """Slot by slot: a call may stop between two of them. In the background it waits for its moment."""
        task = asyncio.current_task()
        if task is not None and task.get_name() == "wide-covers":
            await self.may_go_on.wait()
        return sum([await self._call(super(FaultyProjection, self).write({slot: found}))
                    for slot, found in rows.items()])  # fmt: skip

    async def advance(self, moves: Sequence[Advance]) -> list[Checkpoint | None]:
        """See the port."""
        return await self._call(super().advance(moves))

    async def begin(self, shard: int, expected: Checkpoint | None, new: Checkpoint) -> Checkpoint:
        """See the port."""
        return await self._call(super().begin(shard, expected, new))

    async def cover(self, of: CoverOf, cover: Cover) -> None:
        """See the port."""
        await self._call(super().cover(of, cover))


class World:
    """The log, its members, mailboxes as an oracle, and what else knows conversations."""

    def __init__(self) -> None:
        self.store = FaultyProjection()
        self.log: list[list[Record]] = [[] for _ in range(SHARDS)]
        self.begin = [0] * SHARDS
        self.covered = [-1] * SHARDS
        self.now_ms, self.clock = 10_000, 0
        self.seqs: dict[str, int] = {}
        self.members: dict[str, tuple[int, frozenset[int]]] = {}
        self.bitmaps: dict[tuple[str, str, int, int], bytes] = {}
        self.fold: list[dict[tuple[int, str], int]] = [{} for _ in range(SHARDS)]
        self.facts: list[list[tuple[int, GroupDispatch, list[int]]]] = [[] for _ in range(SHARDS)]

    # ports of the service

    async def bitmap_rows(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        return [self.bitmaps.get(one) for one in wanted]

    async def watermark_of(self, shard: int) -> int:
        return self.covered[shard]

    async def log_range(self, shard: int) -> tuple[int, int]:
        return self.begin[shard], len(self.log[shard])

    # ports of the rebuild

    async def watermark(self, shard: int) -> WatermarkState:
        return WatermarkState(1, (self.covered[shard],) * 64)

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        found = [
            StoredEntry(offset, 0, recipient_entry(dispatch).encode())
            for offset, dispatch, members in self.facts[shard]
            if after_seq < offset <= up_to_seq and ordinal in members
        ]
        return found[:limit]

    async def registered(self, tenant_id: str, ordinal: int) -> list[str]:
        return []

    async def activities(self, tenant_id: str, user_id: str, names: Sequence[str]) -> list[int | None]:
        return [None for _ in names]

    # the log grows

    def append(self, conversation: str, members: frozenset[int], kind: int, step_ms: int) -> None:
        """A message: a dispatch per shard, pinned to the members' version."""
        version, before = self.members.get(conversation, (0, frozenset()))
        if before != members:
            version += 1
            self.members[conversation] = version, members
        seq = self.seqs[conversation] = self.seqs.get(conversation, 0) + 1
        self.clock += step_ms
        message_id = encode(self.clock, seq, 1)
        for shard in range(SHARDS):
            here = sorted(one for one in members if one % SHARDS == shard)
            if here:
                self.bitmaps[TENANT, conversation, shard, version] = bitmaps.encode(BitMap(here))
                inline = None if conversation in WIDE else pack_ordinals(here)
                self._append(
                    shard, _dispatch(conversation, seq, message_id, shard, kind, version, inline), here
                )

    def _append(self, shard: int, dispatch: GroupDispatch, members: list[int]) -> None:
        offset = len(self.log[shard])
        self.log[shard].append(Record(offset, b"k", dispatch.encode()))
        self.facts[shard].append((offset, dispatch, members))
        if dispatch.kind == KIND_MESSAGE:
            for one in members:
                key = (one, dispatch.conversation_id)
                self.fold[shard][key] = max(self.fold[shard].get(key, 0), activity_of(dispatch.message_id))

    def repeat(self, shard: int, number: int) -> None:
        """An old record again."""
        if self.facts[shard]:
            _, dispatch, members = self.facts[shard][number % len(self.facts[shard])]
            self._append(shard, dispatch, members)


def _dispatch(
    conversation: str, seq: int, message_id: bytes, shard: int, kind: int, version: int, inline: bytes | None
) -> GroupDispatch:
    return GroupDispatch(
        TENANT, ids.dispatch_id(message_id, shard), message_id, conversation, seq, message_id, "ann", 1,
        version, shard, kind, 10_000, "phone", "m", b"digest!!", 0, seq, 5, version, inline,
    )  # fmt: skip


class Worker:
    """A worker process and its positions."""

    def __init__(self, world: World) -> None:
        def die(why: str, error: BaseException | None = None) -> NoReturn:
            raise Died(why)

        self.world = world
        self.service = SessionProjection(
            store=world.store,
            reader=_Reader(world),  # type: ignore[arg-type]  # reads no versions
            members=MemberBitmaps(_Reader(world), 16),  # type: ignore[arg-type]
            watermark=world.watermark_of,
            log_range=world.log_range,
            now_ms=lambda: world.now_ms,
            wide_above=WIDE_ABOVE,
            die=die,
        )
        self.at: dict[int, int] = {}

    async def start(self) -> None:
        """Take every shard."""
        for shard in range(SHARDS):
            self.at[shard] = await self._persist(lambda one=shard: self.service.start_position(one))

    async def work(self, counts: Sequence[int]) -> None:
        """One sweep: up to so many records of each shard."""
        batches = []
        for shard, count in enumerate(counts):
            records = self.world.log[shard][self.at[shard] : self.at[shard] + count]
            if records:
                batches.append(Batch(shard, records, self.at[shard] - 1))
        if not batches:
            return
        await self._persist(lambda: self.service.handle(batches))
        for batch in batches:
            self.at[batch.partition] += len(batch.records)

    async def background(self) -> None:
        """Let wide conversations be finished."""
        task = self.service._wide._task
        if task is not None:
            self.world.store.may_go_on.set()
            await asyncio.wait([task])
            self.world.store.may_go_on.clear()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def checkpoint(self, shards: Sequence[int]) -> None:
        """Move checkpoints; I17: what may be acknowledged is what the store would go on behind."""
        reached = await self._persist(lambda: self.service.checkpoint(shards))
        for shard, stands in zip(shards, await self.world.store.checkpoints(shards), strict=True):
            assert stands is None or reached[shard] <= stands.offset, f"shard {shard} acknowledges too much"

    async def _persist(self, call: Any) -> Any:
        for _ in range(3):
            try:
                return await call()
            except StoreUnavailable:
                continue
        return await call()


class _Reader:
    def __init__(self, world: World) -> None:
        self._world = world

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        return await self._world.bitmap_rows(wanted)


class ProjectionMachine(RuleBasedStateMachine):
    """See the module text."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.worker: Worker | None = None
        self.frozen: Worker | None = None

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                self.quiesce()
            finally:
                self._run(self._close())
                self.loop.close()

    async def _close(self) -> None:
        for one in (self.worker, self.frozen):
            if one is not None:
                await one.service.close()

    def _run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)  # type: ignore[arg-type]

    def _try(self, work: Any) -> bool:
        """Run a step of the worker; it may be its last."""
        try:
            self._run(work)
            return True
        except (Crash, Died, QimError):
            self._drop()
            return False

    def _drop(self) -> None:
        if self.worker is not None:
            self._run(self.worker.service.close())
            self.worker = None

    def _alive(self) -> Worker:
        for _ in range(5):
            if self.worker is not None:
                return self.worker
            self.worker = Worker(self.world)
            if not self._try(self.worker.start()):
                continue
        assert self.worker is not None, "no worker comes up"
        return self.worker

    # -- the world moves

    @rule(name=st.sampled_from(SMALL), pair=st.sets(st.sampled_from(USERS), min_size=1, max_size=3),
          step_ms=st.integers(0, 3), kind=st.sampled_from([0, 0, 0, 1]))  # fmt: skip
    def small_message(self, name: str, pair: set[int], step_ms: int, kind: int) -> None:
        self.world.append(name, frozenset(pair), kind, step_ms)

    @rule(
        name=st.sampled_from(WIDE), out=st.sets(st.sampled_from(USERS), max_size=3), step_ms=st.integers(0, 3)
    )
    def wide_message(self, name: str, out: set[int], step_ms: int) -> None:
        self.world.append(name, frozenset(USERS) - out, 0, step_ms)

    @rule(shard=SHARD, number=st.integers(0, 50))
    def repeated(self, shard: int, number: int) -> None:
        self.world.repeat(shard, number)

    @rule(shard=SHARD, count=st.integers(1, 10))
    def mailboxes_go_on(self, shard: int, count: int) -> None:
        world = self.world
        world.covered[shard] = min(world.covered[shard] + count, len(world.log[shard]) - 1)

    @rule(shard=SHARD, count=st.integers(1, 10))
    def retention(self, shard: int, count: int) -> None:
        world = self.world  # the mailbox stage would have refused to lose anything
        world.begin[shard] = min(world.begin[shard] + count, world.covered[shard] + 1)

    # -- the worker works

    @rule(counts=st.tuples(*[st.integers(0, 8)] * SHARDS))
    def sweep(self, counts: tuple[int, ...]) -> None:
        self._try(self._alive().work(counts))

    @rule(shards=st.sampled_from([(0,), (1,), (0, 1)]))
    def checkpoint(self, shards: tuple[int, ...]) -> None:
        self._try(self._alive().checkpoint(shards))

    @rule()
    def background(self) -> None:
        self._try(self._alive().background())

    @rule()
    def compare(self) -> None:
        self._try(self._alive().service.compare())

    @rule(at=st.integers(0, 6), kind=st.sampled_from(["before", "after", "lost"]))
    def arm(self, at: int, kind: str) -> None:
        self.world.store.at, self.world.store.kind = at, kind

    @rule()
    def killed(self) -> None:
        self._drop()

    @rule()
    def freeze(self) -> None:
        """A zombie: it goes on later, beside the one that took over."""
        if self.frozen is None:
            self.frozen, self.worker = self.worker, None

    @rule(counts=st.tuples(*[st.integers(0, 8)] * SHARDS))
    def thaw(self, counts: tuple[int, ...]) -> None:
        zombie, self.frozen = self.frozen, None
        if zombie is None:
            return
        try:
            self._run(zombie.work(counts))
            self._run(zombie.checkpoint(range(SHARDS)))
        except (Crash, Died, QimError):
            pass  # it may end of what it finds
        self._run(zombie.service.close())

    # -- losses: noticed by `compare` or a checkpoint, or by the next start

    @rule(what=st.sampled_from([*["nothing"] * 7, "checkpoint", "rows", "everything"]), shard=SHARD)
    def lost(self, what: str, shard: int) -> None:
        """A checkpoint; rows and checkpoints, while what is covered is still said; or everything. Seldom:
        epoch 0, in which nobody is rebuilt, must get old, too."""
        store = self.world.store
        if what == "checkpoint":
            store.stands.pop(shard, None)
        elif what != "nothing":
            covered = dict(store.covered) if what == "rows" else {}
            store.lose()
            store.covered.update(covered)
            self._drop()  # its memory of what is covered would be a lie; `compare` ends it within seconds
        self.world.now_ms += 1

    # -- what must hold

    @invariant()
    def nothing_is_made_up(self) -> None:
        if not hasattr(self, "world"):
            return
        whole = self.world.fold[0] | self.world.fold[1]
        for (_, ordinal), rows in self.world.store.rows.items():
            for name, activity in rows.items():
                assert activity <= whole.get((ordinal, name), -1), (ordinal, name, activity)

    @rule(user=st.sampled_from(USERS))
    def read(self, user: int) -> None:
        """A list that nobody vouches for is rebuilt by its reading: it shows what the mailbox does."""
        world, shard, at = self.world, user % SHARDS, self.world.store.at
        world.store.at = None
        rebuild = self._rebuild()
        if not self._run(rebuild.is_complete(TENANT, f"u{user}", user)):
            self._run(rebuild.ensure(TENANT, f"u{user}", user))
            rows, wide = world.store.rows.get((TENANT, user), {}), world.store.wide.get((TENANT, user), set())
            for offset, dispatch, members in world.facts[shard]:
                if offset <= world.covered[shard] and user in members and dispatch.kind == KIND_MESSAGE:
                    name, activity = dispatch.conversation_id, activity_of(dispatch.message_id)
                    assert rows.get(name, -1) >= activity or name in wide, (user, name, rows)
        world.store.at = at

    @rule()
    def quiesce(self) -> None:
        """Everything is handled: lists equal the fold."""
        world = self.world
        world.store.at = None
        for shard in range(SHARDS):
            world.covered[shard] = len(world.log[shard]) - 1
        self._try(self._alive().service.compare())
        self._run(self._finish(self._alive()))
        stands = world.store.stands
        assert [stands[shard].offset for shard in range(SHARDS)] == [len(log) - 1 for log in world.log]
        vouched = [one for one in USERS if self._run(self._rebuild().is_complete(TENANT, f"u{one}", one))]
        self._check(vouched)
        for one in USERS:
            assert self._run(self._rebuild().ensure(TENANT, f"u{one}", one))
        self._check(USERS)

    async def _finish(self, worker: Worker) -> None:
        while any(worker.at[shard] < len(self.world.log[shard]) for shard in range(SHARDS)):
            await worker.work([5] * SHARDS)
        await worker.background()
        await worker.checkpoint(range(SHARDS))

    def _rebuild(self) -> SessionRebuild:
        return SessionRebuild(
            store=self.world.store,
            rebuilds=self.world.store,
            mailboxes=self.world,  # type: ignore[arg-type]  # of the store, what a rebuild reads
            known=self.world,
            shard_of=lambda tenant, user, _: int(user[1:]) % SHARDS,
        )

    def _check(self, users: Sequence[int]) -> None:
        world, store = self.world, self.world.store
        for one in users:
            wanted = {name: at for (user, name), at in world.fold[one % SHARDS].items() if user == one}
            rows, wide = store.rows.get((TENANT, one), {}), store.wide.get((TENANT, one), set())
            assert rows.keys() == wanted.keys(), f"user {one}: {rows} instead of {wanted}"
            behind = {name for name, at in wanted.items() if rows[name] != at}
            assert behind <= wide, f"user {one}: {rows} instead of {wanted}, wide {wide}"
            queue = store.queue.get((TENANT, one % 64), {})
            assert {f"{one}:{name}" for name in wanted} <= queue.keys(), f"user {one} is not registered"


TestProjection = ProjectionMachine.TestCase
TestProjection.settings = settings(max_examples=100, stateful_step_count=50)


# -- stories that chance comes to too seldom


def _machine() -> ProjectionMachine:
    """A world in which every user has a row."""
    machine = ProjectionMachine()
    machine.begin()
    for first in range(0, len(USERS), 3):
        machine.small_message("c1", set(USERS[first : first + 3]), 1, 0)
    machine.sweep((8, 8))
    machine.checkpoint((0, 1))
    return machine


def test_the_checkpoint_waits_for_a_wide_message() -> None:
    """Killed before the members of a wide conversation have their rows: the next worker comes back to it."""
    machine = _machine()
    machine.wide_message("w1", set(), 1)
    machine.sweep((8, 8))
    machine.checkpoint((0, 1))
    reached = machine._run(machine._alive().service.checkpoint((0, 1)))
    wide = {shard: len(log) - 1 for shard, log in enumerate(machine.world.log)}
    assert any(reached[shard] < wide[shard] for shard in wide), "the wide message is acknowledged"
    machine.killed()
    machine.teardown()


def test_a_cover_ends_with_its_epoch() -> None:
    """Rows are lost and what is covered is still said: the next wide message writes them again."""
    machine = _machine()
    machine.wide_message("w1", set(), 1)
    machine.sweep((8, 8))
    machine.background()
    machine.checkpoint((0, 1))
    for shard in range(SHARDS):
        machine.mailboxes_go_on(shard, 4)  # up to the wide message, without it
    machine.lost("rows", 0)
    machine.sweep((8, 8))
    machine.background()
    machine.checkpoint((0, 1))
    for user in USERS:
        machine.read(user)
    machine.teardown()


def test_an_epoch_begins_where_mailboxes_end() -> None:
    """Mailboxes are behind the log, and a user is rebuilt: what they do not hold yet is projected."""
    machine = _machine()
    for shard in range(SHARDS):
        machine.mailboxes_go_on(shard, 1)
    machine.lost("everything", 0)
    machine.sweep((0, 0))
    machine.sweep((8, 8))
    machine.checkpoint((0, 1))
    for user in USERS:
        machine.read(user)
    machine.teardown()


def test_the_first_epoch_comes_again_and_what_was_read_before_is_not_believed() -> None:
    """T-R2: everything is lost, W too; a reader that lived through it reads the whole mailbox again."""
    machine = ProjectionMachine()
    machine.begin()
    world = machine.world
    machine.small_message("c1", set(USERS[:3]), 1, 0)
    machine.small_message("c2", set(USERS[:3]), 1, 0)
    machine.sweep((0, 0))  # the first epoch has begun, and nothing of it is done
    for shard in range(SHARDS):
        machine.mailboxes_go_on(shard, 10)
    reader = machine._rebuild()
    for user in USERS[:3]:
        machine._run(reader.ensure(TENANT, f"u{user}", user))
    covered, world.covered = list(world.covered), [-1] * SHARDS
    machine.killed()
    machine.lost("everything", 0)
    machine.sweep((0, 0))
    machine.sweep((1, 1))  # the first epoch again, and a row of it
    world.covered = covered  # mailboxes are back
    for user in USERS[:3]:
        machine._run(reader.ensure(TENANT, f"u{user}", user))
    machine._check(USERS[:3])
    machine.teardown()


def test_rows_that_went_with_the_last_second_of_the_store_are_written_again() -> None:
    """T-R2: rows are gone, the checkpoint before them is not: nothing is covered that is not there."""
    machine = _machine()
    store = machine.world.store
    rows = {user: dict(found) for user, found in store.rows.items()}
    machine.small_message("c2", set(USERS[:3]), 1, 0)
    machine.sweep((8, 8))
    assert store.rows != rows
    store.rows, store.lives = rows, store.lives + 1
    machine.checkpoint((0, 1))
    machine.quiesce()
    machine.teardown()
