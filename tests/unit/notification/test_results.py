"""What an application is told of notifications: every outcome once while nobody dies, none is left out."""

from contextlib import AsyncExitStack

import pytest

from qim_streams.errors import RecordError
from qim_streams.notification.ports import Answer, Result
from qim_streams.notification.records import PushResult, decode_result
from qim_streams.notification.results import REASON_MAX, RESULT_TOPIC, result_partition
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.state import UserConversationState
from tests.unit.notification.world import AGE_MAX_MS, CLAIM_MS, GRACE_MS, NotificationWorld

BEN = SessionUser("acme", "ben", 64)


def outcomes(world: NotificationWorld) -> list[tuple[str, str]]:
    return [(one.outcome, one.reason) for one in world.told.results]


async def test_a_notification_that_the_provider_took_is_told_once() -> None:
    """Whatever of it is replayed; in the user's partition, with all that names it."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        task = world.message()
        await world.offer(service, task, task)
        await world.pass_time(GRACE_MS + 100)
        await world.offer(service, task)
        await world.pass_time(CLAIM_MS, 5_000)
    (result,) = world.told.results
    assert result[:10] == (
        "acme", "ben", "phone", task.task_id, task.message_id, "team", task.conversation_seq, "apns", "sent",
        "",
    )  # fmt: skip
    assert task.committed_at < result.at <= world.now_ms
    (record,) = world.told.records
    assert record[:3] == (RESULT_TOPIC, result_partition("acme", "ben", 4), b"acme\0ben")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(Result.REFUSED, "PayloadTooLarge"), ("failed", "PayloadTooLarge")),
        (Answer(Result.REFUSED), ("failed", "refused")),
        (Answer(Result.DEAD, "Unregistered"), ("dead", "Unregistered")),
        (Answer(Result.REFUSED, "x" * 1_000), ("failed", "x" * REASON_MAX)),
    ],
)
async def test_what_a_provider_says_for_good_is_told(answer: Answer, told: tuple[str, str]) -> None:
    world = NotificationWorld()
    await world.device()
    world.providers["apns"].answer = lambda one: answer
    async with world.running() as service:
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        await world.pass_time(CLAIM_MS * 2, 5_000)
    assert outcomes(world) == [told]


async def test_what_is_given_up_or_too_old_is_told() -> None:
    world = NotificationWorld()
    await world.device()
    await world.device("cleo")
    world.providers["apns"].answer = lambda one: Answer(
        Result.BUSY, "TooManyRequests", 1_000 if one.user_id == "ben" else 10 * AGE_MAX_MS
    )
    async with world.running() as service:
        await world.offer(service, world.message(), world.message("cleo"))
        await world.pass_time(2 * AGE_MAX_MS, 20_000)
        told = {one.user_id: (one.outcome, one.reason) for one in world.told.results}
        assert told["ben"][0] == "failed"
        assert told["ben"][1] in ("gave_up: TooManyRequests", "expired")
        await world.pass_time(12 * AGE_MAX_MS, 600_000)
    assert sorted(one.user_id for one in world.told.results) == ["ben", "cleo"]
    assert outcomes(world)[-1] == ("failed", "expired")


async def test_what_the_user_himself_let_go_is_no_result() -> None:
    """Muted, read, logged out: nothing was to be sent."""
    world = NotificationWorld()
    await world.device()
    async with world.running() as service:
        world.messages.marks[BEN, "team"] = UserConversationState("ben", "team", muted=True)
        await world.offer(service, world.message())
        await world.pass_time(GRACE_MS + 100)
        world.messages.marks.clear()
        await world.offer(service, world.message())
        await world.registry.unregister("acme", "ben", "phone")
        await world.pass_time(GRACE_MS + 100)
        assert await world.queue.waiting([0], "apns") == 0
    assert not world.told.results


async def test_a_log_that_is_away_keeps_tasks_from_being_over() -> None:
    """Nothing is settled before it is told: the token is not buried either, and each is told in the end."""
    world = NotificationWorld()
    await world.device()
    await world.device("cleo")
    apns = world.providers["apns"]
    apns.answer = lambda one: Answer(Result.DEAD if one.user_id == "cleo" else Result.SENT, "gone")
    world.told.down = True
    async with world.running() as service:
        await world.offer(service, world.message(), world.message("cleo"))
        await world.pass_time(GRACE_MS + 100)
        assert not world.queue.sent
        assert await world.registry.dead_reason("acme", "cleo", "phone") is None
        world.told.down = False
        # The lane looks again after a second of its own.
        for lane in world.lanes:
            lane._ended.set()
            await lane._settle()
        await world.pass_time(CLAIM_MS, 2_000)
    assert sorted((one.user_id, one.outcome) for one in world.told.results) == [
        ("ben", "sent"),
        ("cleo", "dead"),
    ]
    assert apns.per_target[("phone", world.told.results[0].message_id)] >= 1
    assert await world.registry.dead_reason("acme", "cleo", "phone") == "gone"


@pytest.mark.parametrize("read_meanwhile", [False, True])
async def test_a_death_after_the_request_leaves_no_notification_untold(read_meanwhile: bool) -> None:
    """Sent, not told, dead: it is sent and told again; if its user has read it meanwhile, it is told as
    failed: nobody knows whether the provider has it."""
    world = NotificationWorld()
    await world.device()
    apns = world.providers["apns"]
    apns.gate.clear()
    async with AsyncExitStack() as first:
        service = await first.enter_async_context(world.running())
        task = world.message()
        await world.offer(service, task)
        await world.pass_time(GRACE_MS + 100)
        for running in service._tasks:  # as a kill does: nothing is drained, nothing noted
            for lane in world.lanes:
                for sending in lane._sending:
                    sending.cancel()
            running.cancel()
    assert not world.told.results
    apns.gate.set()
    if read_meanwhile:
        world.messages.marks[BEN, "team"] = UserConversationState(
            "ben", "team", read_seq=task.conversation_seq
        )
    async with world.running():
        await world.pass_time(3 * CLAIM_MS, 5_000)
    assert outcomes(world) == [("failed", "unknown: read") if read_meanwhile else ("sent", "")]


def test_records_that_are_none() -> None:
    good = PushResult("acme", "ben", "phone", b"n" * 16, b"m" * 16, "team", 7, "apns", "sent", "", 1, 2)
    assert decode_result(good._replace(extra=("later",)).encode()).extra == ("later",)
    for bad in (b"", b"\x01\x90", good._replace(message_id=b"short").encode()):
        with pytest.raises(RecordError):
            decode_result(bad)
