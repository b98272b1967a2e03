"""The notification stage on stores in memory: H1 H5 H8 H10 H11 H13 F17, and what a death in between costs."""

from contextlib import AsyncExitStack

import pytest

from qim_streams.errors import InvariantViolation
from qim_streams.mentions import mentions
from qim_streams.notification.ports import Answer, Result
from qim_streams.notification.records import PushSettings
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.state import UserConversationState
from tests.unit.notification.world import CLAIM_MS, GRACE_MS, Batch, NotificationWorld, Record

BEN = SessionUser("acme", "ben", 64)


async def test_one_notification_whatever_is_replayed() -> None:
    """H1: the same dispatch three times, the same log again, before and after it is sent: one request."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        task = world.message()
        again = task._replace(made_at=task.made_at + 1)
        await world.offer(service, task, again)
        await world.offer(service, task)
        await world.pass_time(GRACE_MS + 100)
        await world.offer(service, task)
        await world.pass_time(CLAIM_MS * 2, 5_000)
    async with world.running() as service:
        await world.offer(service, task)
        await world.pass_time(CLAIM_MS * 2, 5_000)
    assert set(world.providers["apns"].per_target.values()) == {1}
    assert world.queue.sent == [task.task_id]


async def test_a_notification_has_badge_mention_and_preview() -> None:
    """H13 F17."""
    world = NotificationWorld()
    await world.device()
    world.messages.unread["ben"] = 5
    async with world.running() as service:
        await world.offer(service, world.message(mentions=mentions(["ben"], False), body=b"x" * 50))
        await world.offer(service, world.message(body=b"\xff\x00"))
        await world.pass_time(GRACE_MS + 100)
    first, second = sorted(world.providers["apns"].seen, key=lambda one: one.message_id)
    assert (first.badge, first.mention_type, first.text) == (5, 1, "x" * 19 + "…")
    assert (second.mention_type, second.text) == (0, "You have a new message")
    assert first.collapse_key == first.notification_id.hex()


async def test_a_count_that_takes_too_long_costs_the_badge_not_the_notification(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H13: and the log says why."""
    world = NotificationWorld()
    await world.device()
    world.messages.uncounted = True
    with caplog.at_level("INFO"):
        async with world.running() as service:
            await world.offer(service, world.message())
            await world.pass_time(GRACE_MS + 100)
    assert [one.badge for one in world.providers["apns"].seen] == [None]
    assert "1 badges are left out: no answer in time" in caplog.text


async def test_who_reconnects_within_the_grace_is_not_notified() -> None:
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS - 500)
        assert not world.providers["apns"].seen
        world.devices.sessions["acme", "ben", "phone"] = world.now_ms
        await world.pass_time(60_000, 5_000)
        assert not world.providers["apns"].seen


async def test_in_flight_tasks_of_a_logged_out_device_are_dropped() -> None:
    """H5: registered when the task was accepted, logged out when it was due, and between two attempts."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.registry.unregister("acme", "ben", "phone")
        await world.pass_time(60_000, 5_000)
        assert not world.providers["apns"].seen
        await world.device()
        world.providers["apns"].answer = lambda one: Answer(Result.BUSY, "TooManyRequests")
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        assert len(world.providers["apns"].seen) == 1
        await world.registry.unregister("acme", "ben", "phone")
        await world.pass_time(3_600_000, 10_000)
        assert len(world.providers["apns"].seen) == 1
        assert await world.queue.waiting([0], "apns") == 0


async def test_mute_read_and_quiet_hours_are_honoured_and_mentions_go_through() -> None:
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        world.messages.marks[BEN, "team"] = UserConversationState("ben", "team", muted=True)
        plain, named = world.message(), world.message(mentions=mentions(["ben"], False))
        await world.offer(service, plain, named)
        await world.pass_time(GRACE_MS + 100)
        assert [one.message_id for one in world.providers["apns"].seen] == [named.message_id]
        late = world.message()
        await world.offer(service, late)
        world.messages.marks[BEN, "team"] = UserConversationState(
            "ben", "team", read_seq=late.conversation_seq
        )
        await world.pass_time(GRACE_MS + 100)
        await world.registry.change_settings(PushSettings("acme", "ben", 0, 24 * 60 - 1))
        world.messages.marks.clear()
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        assert len(world.providers["apns"].seen) == 1


async def test_a_dead_token_is_asked_once_and_reported() -> None:
    """What comes later makes no request; the app hears of it, and a new registration works again."""
    world = NotificationWorld()
    await world.device()
    apns = world.providers["apns"]
    apns.answer = lambda one: Answer(Result.DEAD, "Unregistered")
    async with world.running() as service:
        for _ in range(3):
            await world.offer(service, world.message())
            await world.pass_time(GRACE_MS + 100)
        assert len(apns.seen) == 1
        assert await world.registry.dead_reason("acme", "ben", "phone") == "Unregistered"
        apns.answer = lambda one: Answer(Result.SENT)
        await world.device()
        assert await world.registry.dead_reason("acme", "ben", "phone") is None
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        assert len(apns.seen) == 2


async def test_a_registration_newer_than_the_death_of_the_token_stands() -> None:
    world = NotificationWorld()
    device = await world.device()
    died = device.version - 1
    world.providers["apns"].answer = lambda one: Answer(Result.DEAD, "Unregistered", dead_since_ms=died)
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
    assert await world.registry.dead_reason("acme", "ben", "phone") is None


async def test_a_provider_that_is_down_is_left_alone_and_everything_comes_afterwards() -> None:
    """H8: 503 for two minutes at a message a second, of as many devices: a handful of requests, none lost."""
    world = NotificationWorld()
    apns = world.providers["apns"]
    apns.answer = lambda one: Answer(Result.DOWN, "503")
    async with world.running() as service:
        for number in range(120):
            await world.device(f"u{number}")
            await world.offer(service, world.message(f"u{number}"))
            await world.pass_time(1_000)
        assert len(apns.seen) < 40
        apns.answer = lambda one: Answer(Result.SENT)
        apns.seen.clear()
        await world.pass_time(700_000, 10_000)
        assert len(apns.per_target) == 120
        assert set(apns.per_target.values()) == {1}


async def test_a_provider_that_hangs_holds_up_no_other() -> None:
    world = NotificationWorld(in_flight_max=2)
    world.providers["apns"].gate.clear()
    async with world.running() as service:
        for number in range(10):
            await world.device(f"a{number}")
            await world.device(f"f{number}", provider="fcm")
            await world.offer(service, world.message(f"a{number}"), world.message(f"f{number}"))
        await world.pass_time(GRACE_MS + 1_000)
        assert len(world.providers["apns"].seen) == 2
        assert len(world.providers["fcm"].seen) == 10
        world.providers["apns"].gate.set()
        await world.pass_time(5_000)
        assert len(world.providers["apns"].per_target) == 10


async def test_retries_are_bounded_and_keep_their_id() -> None:
    """H11: a target that always says no: some tries, one id, then no more."""
    world = NotificationWorld()
    await world.device()
    apns = world.providers["apns"]
    apns.answer = lambda one: Answer(Result.BUSY, "TooManyRequests")
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(2 * 3_600_000, 20_000)
        assert 3 <= len(apns.seen) <= 10
        assert len({one.notification_id for one in apns.seen}) == 1
        assert await world.queue.waiting([0], "apns") == 0


async def test_a_new_message_does_not_pass_by_a_targets_back_off() -> None:
    """H8: the device that is left alone gets no request for a second message either."""
    world = NotificationWorld()
    await world.device()
    apns = world.providers["apns"]
    apns.answer = lambda one: Answer(Result.BUSY, "TooManyRequests", 60_000)
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        for _ in range(10):
            await world.offer(service, world.message())
            await world.pass_time(4_000)
        assert len(apns.seen) == 1
        apns.answer = lambda one: Answer(Result.SENT)
        await world.pass_time(120_000, 2_000)
        assert len(apns.per_target) == 11


async def test_old_tasks_are_dropped_and_not_sent_after_an_outage() -> None:
    """H10: the age limit, at the door and at the time of sending."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        old = world.message()
        await world.offer(service, old._replace(committed_at=old.committed_at - 3_600_001))
        await world.pass_time(5_000)
        assert await world.queue.waiting([0], "apns") == 0
        world.providers["apns"].answer = lambda one: Answer(Result.DOWN, "503")
        await world.offer(service, world.message())
        await world.pass_time(3_600_000, 20_000)
        tries = len(world.providers["apns"].seen)
        world.providers["apns"].answer = lambda one: Answer(Result.SENT)
        await world.pass_time(3_600_000, 20_000)
        assert len(world.providers["apns"].seen) <= tries + 1
        assert not world.queue.sent


@pytest.mark.parametrize("repeat", [True, False])
async def test_a_death_between_request_and_note_costs_one_repeat_or_one_notification(repeat: bool) -> None:
    """The bound: with `repeat_unknown` two requests with one id; without, never a second one."""
    world = NotificationWorld(repeat_unknown=repeat)
    await world.device()
    apns = world.providers["apns"]
    apns.gate.clear()
    async with AsyncExitStack() as first:
        service = await first.enter_async_context(world.running())
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        assert len(apns.seen) == 1
        for task in service._tasks:  # as a kill does: nothing is drained, nothing noted
            for lane in world.lanes:
                for sending in lane._sending:
                    sending.cancel()
            task.cancel()
    apns.gate.set()
    async with world.running():
        await world.pass_time(CLAIM_MS - GRACE_MS - 1_000, 5_000)
        assert len(apns.seen) == 1  # the claim holds
        await world.pass_time(CLAIM_MS, 5_000)
        assert len(apns.seen) == (2 if repeat else 1)
        await world.pass_time(10 * CLAIM_MS, 10_000)
        assert len(apns.seen) == (2 if repeat else 1)
    assert len({one.notification_id for one in apns.seen}) == 1


async def test_a_store_that_is_away_delays_and_loses_nothing() -> None:
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        world.messages.down = True
        await world.offer(service, world.message())
        await world.pass_time(5_000)
        assert not world.providers["apns"].seen
        world.messages.down = False
        await world.pass_time(2 * CLAIM_MS, 5_000)
    assert set(world.providers["apns"].per_target.values()) == {1}


async def test_tasks_that_the_queue_lost_with_its_last_second_come_again() -> None:
    """T-R2, H10: the next batch or a look ends the process, and the next one reads them again."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        first, lost = world.message(), world.message()
        await world.offer(service, first)
        await world.offer(service, lost)
        world.queue.lose(0, 1, [lost.task_id])
        with pytest.raises(AssertionError, match="lost its last writes"):  # what ends a process, here
            await service.compare()
        with pytest.raises(InvariantViolation):
            await world.offer(service, world.message())
        assert await world.queue.position(0) == 1
    async with world.running() as service:
        await service.handle([Batch(0, [Record(lost.key, lost.encode(), 1)])])
        await service.compare()
        await world.pass_time(GRACE_MS + 100)
    told = {one.message_id for one in world.providers["apns"].seen}
    assert told == {first.message_id, lost.message_id}
    assert set(world.providers["apns"].per_target.values()) == {1}


async def test_a_queue_that_was_emptied_sends_nothing_again() -> None:
    """H10: whoever lives through it goes on, and whoever starts goes on where the group was."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        first = world.message()
        await world.offer(service, first)
        await world.pass_time(GRACE_MS + 100)
        world.queue.__init__(waiting_max=10_000, claim_ms=CLAIM_MS, kept_ms=1)  # type: ignore[misc]
        await service.compare()
        await world.offer(service, world.message())
    world.queue.__init__(waiting_max=10_000, claim_ms=CLAIM_MS, kept_ms=1)  # type: ignore[misc]

    async def committed(partition: int) -> int:
        return 2

    async with world.running() as service:
        assert await service.start_position(0) == 0, "nobody ever read this log"
        service._committed = committed
        assert await service.start_position(0) == 2
    assert set(world.providers["apns"].per_target.values()) == {1}


async def test_poison_goes_to_the_dead_letters_and_the_rest_goes_on() -> None:
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        good = world.message()
        await service.handle([Batch(0, [Record(b"k", b"nonsense", 0), Record(good.key, good.encode(), 1)])])
        await world.pass_time(GRACE_MS + 100)
    assert len(world.letters.poison) == 1
    assert len(world.providers["apns"].seen) == 1
    assert await world.queue.position(0) == 2


async def test_a_token_that_changes_hands_takes_its_notifications_along() -> None:
    """Another user signs on to the same telephone: the former one's messages are not shown there."""
    world = NotificationWorld()
    ben = await world.device("ben")
    await world.registry.register(ben._replace(user_id="cleo", ordinal=128))
    assert await world.registry.devices("acme", "ben") == []
    assert [one.token for one in await world.registry.devices("acme", "cleo")] == [ben.token]
    assert world.log.records[-1].value is None


async def test_a_request_that_outlives_its_claim_is_not_made_twice_here() -> None:
    """A process that is starved of CPU for longer than its claims: it knows what it has under way."""
    world = NotificationWorld()
    await world.device()
    world.providers["apns"].gate.clear()
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(5 * CLAIM_MS, 5_000)
        world.providers["apns"].gate.set()
        await world.pass_time(5 * CLAIM_MS, 5_000)
    assert set(world.providers["apns"].per_target.values()) == {1}
    assert len(world.queue.sent) == 1
