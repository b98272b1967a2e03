"""How states get into the archive, and marks that meet: registrations, dirty lists, compare-and-set."""

import asyncio

import pytest

from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.sessions import keeping
from qim_streams.sessions.keeping import (
    BATCH,
    BUSY_PAUSE_MAX_S,
    BUSY_PAUSE_S,
    EVERYWHERE_MS,
    PAUSE_S,
    REST_PER_WORK,
    pause_s,
)
from qim_streams.sessions.ports import Replaced, SessionUser, StateChange
from qim_streams.sessions.state import UserConversationState, decode_state
from qim_streams.testing.memory_sessions import MemoryUserStates
from tests.support.history_world import TENANT
from tests.support.session_world import SessionWorld

ALWAYS = ((0, None),)


@pytest.fixture
def world() -> SessionWorld:
    made = SessionWorld()
    made.past.group({"ann": ((30, None),), "ben": ALWAYS})
    return made


async def test_a_new_conversation_is_registered_with_its_join_point(world: SessionWorld) -> None:
    """F10: what entered a user's set gets a state, durable before the registration is forgotten."""
    await world.saw("ann", "team", 5)
    world.past.archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await world.keeper().work()
    assert await world.projection.pending(list(world.projection.queue), 10), "still waits"
    world.past.archive.unavailable = False
    assert await world.keeper().work() >= 1
    assert not await world.projection.pending(list(world.projection.queue), 10)
    stored = world.past.archive.states[TENANT, "ann", "team"]
    state = decode_state(stored.state)
    assert (state.first_seen_seq, state.first_seen_at, state.version) == (31, 1_000, stored.version)
    assert await world.keeper().work() == 0, "nothing twice"


async def test_a_registration_replaces_nothing(world: SessionWorld) -> None:
    """A state that exists, here or in the archive only, is left as it is."""
    await world.saw("ann", "team", 5)
    await world.actions.mark_read(world.actor("ann"), "team", world.say("team", "ben", 40))
    await world.keeper().work()
    world.states.lose()
    world.projection.rows.clear()
    await world.saw("ann", "team", 6)
    await world.keeper().work()
    (data,) = (await world.states.load(world.user("ann"), ["team"]))[1]
    assert data is not None
    assert decode_state(data).read_seq == 40


async def test_what_changes_while_it_is_stored_is_stored_again(world: SessionWorld) -> None:
    await world.saw("ann", "team", 5)
    world.say("team", "ben", 50)
    keeper, archive = world.keeper(), world.past.archive
    await world.actions.mark_read(world.actor("ann"), "team", 10)
    store = archive.store_states

    async def raced(states: list[object]) -> None:
        archive.store_states = store  # type: ignore[method-assign]
        await world.actions.mark_read(world.actor("ann"), "team", 20)
        await store(states)  # type: ignore[arg-type]

    archive.store_states = raced  # type: ignore[method-assign, assignment]
    await keeper.work()
    await keeper.work()
    assert decode_state(archive.states[TENANT, "ann", "team"].state).read_seq == 20


async def test_an_idle_lane_is_forgotten_late(world: SessionWorld) -> None:
    await world.saw("ann", "team", 5)
    world.say("team", "ben")
    await world.actions.mark_read(world.actor("ann"), "team", 31)
    for _ in range(2):
        await world.keeper().work()
    assert world.states.noted
    world.now_ms += 600_002
    await world.keeper().work()
    assert not world.states.noted


async def test_a_registration_that_the_store_lost_in_between_is_not_settled(world: SessionWorld) -> None:
    """T-R2: the state was made, the store died and forgot it, and came back with the registration."""
    await world.saw("ann", "team", 5)
    keeper, lanes = world.keeper(), world.states.lanes

    async def lost() -> list[tuple[str, int]]:
        world.states.lose()
        world.projection.lives += 1
        return await lanes()

    world.states.lanes = lost  # type: ignore[method-assign]  # between registering and storing
    await keeper.work()
    world.states.lanes = lanes  # type: ignore[method-assign]
    assert await world.projection.pending(list(world.projection.queue), 10), "still waits"
    await keeper.work()
    assert not await world.projection.pending(list(world.projection.queue), 10)
    assert decode_state(world.past.archive.states[TENANT, "ann", "team"].state).first_seen_seq == 31


async def test_a_list_whose_lane_the_store_forgot_is_found(world: SessionWorld) -> None:
    """T-R2: who noted the lane trusts that it stands, and adds a state to the list after the restart."""
    await world.saw("ann", "team", 5)
    world.say("team", "ben", 50)
    keeper, archive = world.keeper(), world.past.archive
    await keeper.work()
    world.projection.lives += 1
    await keeper.work()
    await world.actions.mark_read(world.actor("ann"), "team", 40)
    world.states.noted.clear()
    await keeper.work()
    assert decode_state(archive.states[TENANT, "ann", "team"].state).read_seq == 0
    world.now_ms += EVERYWHERE_MS
    await keeper.work()
    assert decode_state(archive.states[TENANT, "ann", "team"].state).read_seq == 40


async def test_a_state_that_the_store_lost_and_the_archive_has_is_put_back(world: SessionWorld) -> None:
    """T-R2: it was stored, taken off the list, and forgotten; the store came back with the one before."""
    await world.saw("ann", "team", 5)
    world.say("team", "ben", 50)
    await world.actions.mark_read(world.actor("ann"), "team", 35)
    keeper = world.keeper()
    await keeper.work()
    before = {user: dict(stored) for user, stored in world.states.stored.items()}
    world.now_ms += 1_000
    await world.actions.mark_read(world.actor("ann"), "team", 40)
    await keeper.work()
    world.states.stored = before
    world.projection.lives += 1
    await keeper.work()
    (data,) = (await world.states.load(world.user("ann"), ["team"]))[1]
    assert data is not None
    assert decode_state(data).read_seq == 40
    world.now_ms += 1_000
    await world.actions.mark_read(world.actor("ann"), "team", 45)
    world.projection.lives += 1
    await keeper.work()  # what is newer than the archive's stands
    (data,) = (await world.states.load(world.user("ann"), ["team"]))[1]
    assert data is not None
    assert decode_state(data).read_seq == 45


class Slow(MemoryUserStates):
    """States of which somebody else changes one before each replacement."""

    conflicts = 0

    async def replace(self, user: SessionUser, changes: list[StateChange]) -> Replaced:  # type: ignore[override]
        """See the port."""
        if self.conflicts:
            self.conflicts -= 1
            key = (user.tenant_id, user.ordinal)
            before = self.stored.get(key, {}).get("team")
            state = decode_state(before) if before else UserConversationState("ann", "team")
            other = state._replace(muted=not state.muted, version=state.version + 1)
            self.stored.setdefault(key, {})["team"] = other.encode()
        return await super().replace(user, changes)


async def test_marks_of_two_kinds_that_meet_both_stand(world: SessionWorld) -> None:
    """Compare-and-set: the loser reads again; for ever is an error that may be repeated."""
    slow = Slow(world.projection, lambda: world.now_ms)
    world.states.__class__ = Slow
    world.say("team", "ben", 40)
    assert isinstance(world.states, Slow)
    world.states.conflicts = 3
    changed = await world.actions.mark_read(world.actor("ann"), "team", 35)
    assert (changed.row.view.state.read_seq, changed.row.view.state.muted) == (35, True)
    world.states.conflicts = 100
    with pytest.raises(StoreUnavailable, match="repeat"):
        await world.actions.set_pin(world.actor("ann"), "team", True)
    assert slow.conflicts == 0


async def test_a_caller_that_goes_away_stops_nobody(world: SessionWorld) -> None:
    world.say("team", "ben", 40)
    actor = world.actor("ann")
    gone = asyncio.create_task(world.actions.mark_read(actor, "team", 39))
    stays = asyncio.create_task(world.actions.mark_read(actor, "team", 33))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).row.view.state.read_seq == 39
    await asyncio.gather(gone, return_exceptions=True)
    await world.actions.close()


async def test_pins_are_bounded(world: SessionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qim_streams.limits.SESSION_PINS_MAX", 2)
    for name in ("a", "b", "c"):
        world.past.group({"ann": ALWAYS}, chat=name)
    for name in ("a", "b", "a"):
        await world.actions.set_pin(world.actor("ann"), name, True)
    with pytest.raises(AdmissionRefused, match="unpin"):
        await world.actions.set_pin(world.actor("ann"), "c", True)
    await world.actions.set_pin(world.actor("ann"), "a", False)
    await world.actions.set_pin(world.actor("ann"), "c", True)


async def test_a_large_group_is_carried_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is bounded: marks of others do not wait for all registrations of a new group."""
    monkeypatch.setattr(keeping, "BATCH", 3)
    names = [f"user-{number}" for number in range(8)]
    world = SessionWorld()
    world.past.group(dict.fromkeys(names, ALWAYS))
    for name in names:
        await world.saw(name, "team", 5)
    keeper, archive = world.keeper(), world.past.archive
    assert await keeper.work() == 6, "three were registered, and their states stored"
    assert len(archive.states) == 3
    archive.unavailable = True
    with pytest.raises(StoreUnavailable):
        await keeper.work()
    archive.unavailable = False
    for _ in range(4):
        await keeper.work()
    assert {user for _, user, _ in archive.states} == set(names)
    assert await keeper.work() == 0
    assert not await world.projection.pending(list(world.projection.queue), 10)


def test_a_busy_keeper_leaves_the_machine_to_others() -> None:
    """A quarter of a core, unless passes are so long that it would fall behind."""
    assert pause_s(0, 9.0) == PAUSE_S
    assert pause_s(BATCH, 0.5) == 0.5 * REST_PER_WORK
    assert pause_s(BATCH, 0.0) == BUSY_PAUSE_S
    assert pause_s(BATCH, 60.0) == BUSY_PAUSE_MAX_S
