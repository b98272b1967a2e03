"""Who is told nothing, quiet hours, back-off, circuit breaker: H5 H8 H10 H11."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import RecordError
from qim_streams.notification import rules
from qim_streams.notification.circuit import FAILURES_MAX, CircuitBreaker, TargetBackoff
from qim_streams.notification.records import (
    PushDevice,
    PushSettings,
    PushTask,
    decode_device,
    decode_settings,
    decode_task,
)
from qim_streams.notification.retry_after import DELAY_MAX_MS, retry_after_ms
from qim_streams.notification.rules import Known, is_quiet, why_not

NOW = 1_760_000_000_000
TASK = PushTask("acme", "ben", 64, "phone", b"\x01" * 16, "team", 42, "ann", NOW - 5_000, NOW - 4_000, 3)
DEVICE = PushDevice("acme", "ben", 64, "phone", "apns", "", "tok", 1)
KNOWN = Known(DEVICE, None, 0, False, 0, 0, (), False, 0, 0)
AGE_MAX_MS = 60_000


def test_records_survive_their_bytes() -> None:
    settings = PushSettings("acme", "ben", 60, 120, "Europe/Berlin", True, 7)
    assert decode_task(TASK.encode()) == TASK
    assert decode_device(DEVICE.encode()) == DEVICE
    assert decode_settings(settings.encode()) == settings
    assert decode_task(TASK._replace(extra=(1, "x")).encode()).extra == (1, "x")
    assert "tok" not in repr(DEVICE)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_an_error(data: bytes) -> None:
    for decode in (decode_task, decode_device, decode_settings):
        try:
            decode(data)
        except RecordError:
            continue


def test_a_task_made_again_has_the_same_id() -> None:
    again = TASK._replace(made_at=NOW, mailbox_shard=0)
    assert again.task_id == TASK.task_id
    assert TASK._replace(device_id="tablet").task_id != TASK.task_id
    assert TASK._replace(message_id=b"\x02" * 16).task_id != TASK.task_id
    assert rules.task_partition(TASK, 32) == rules.task_partition(again, 32)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (KNOWN, None),
        (KNOWN._replace(device=None), "no_device"),
        (KNOWN._replace(device=DEVICE._replace(dead="Unregistered")), "no_device"),
        (KNOWN._replace(ended=True), "logged_out"),
        (KNOWN._replace(session_epoch=TASK.made_at + 1), "online"),
        (KNOWN._replace(session_epoch=TASK.made_at - rules.SIGNING_ON_MS - 1), None),
        (KNOWN._replace(read_seq=42), "read"),
        (KNOWN._replace(read_seq=41), None),
        (KNOWN._replace(deleted_to_seq=42), "read"),
        (KNOWN._replace(deleted=(41, 42)), "read"),
        (KNOWN._replace(state=None), "no_message"),
        (KNOWN._replace(state=2), "recalled"),
        (KNOWN._replace(state=1), None),
        (KNOWN._replace(muted=True), "muted"),
        (KNOWN._replace(muted=True, mention=1), None),
        (KNOWN._replace(muted=True, mention=2), "muted"),
    ],
)
def test_who_is_told_nothing(known: Known, why: str | None) -> None:
    assert why_not(TASK, known, NOW, AGE_MAX_MS) == why


def test_an_old_message_is_nobodys_news() -> None:
    """H10: beyond the age limit nothing is sent, whatever is known."""
    assert why_not(TASK, KNOWN, TASK.committed_at + AGE_MAX_MS, AGE_MAX_MS) is None
    assert why_not(TASK, KNOWN, TASK.committed_at + AGE_MAX_MS + 1, AGE_MAX_MS) == "expired"


def at(hour: int, minute: int = 0, month: int = 1) -> int:
    return int(datetime(2026, month, 15, hour, minute, tzinfo=UTC).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("settings", "now", "quiet"),
    [
        (PushSettings("a", "b"), at(3), False),
        (PushSettings("a", "b", 60, 120), at(1), True),
        (PushSettings("a", "b", 60, 120), at(2), False),
        (PushSettings("a", "b", 60, 60), at(1), False),
        (PushSettings("a", "b", 22 * 60, 7 * 60), at(23), True),
        (PushSettings("a", "b", 22 * 60, 7 * 60), at(6, 59), True),
        (PushSettings("a", "b", 22 * 60, 7 * 60), at(7), False),
        # 23:30 in London is 00:30 in Berlin in winter; in summer 22:30 UTC is.
        (PushSettings("a", "b", 0, 60, "Europe/Berlin"), at(23, 30), True),
        (PushSettings("a", "b", 0, 60, "Europe/Berlin"), at(23, 30, month=7), False),
        (PushSettings("a", "b", 0, 60, "Europe/Berlin"), at(22, 30, month=7), True),
        (PushSettings("a", "b", 60, 120, "No/Where"), at(1), True),
    ],
)
def test_quiet_hours_are_the_users(settings: PushSettings, now: int, quiet: bool) -> None:
    assert is_quiet(settings, now) is quiet


def test_a_mention_breaks_quiet_hours_only_if_the_user_said_so() -> None:
    night = PushSettings("acme", "ben", 0, 24 * 60 - 1)
    named = KNOWN._replace(mention=1)
    assert why_not(TASK, named._replace(settings=night), NOW, AGE_MAX_MS) == "quiet"
    open_to_it = night._replace(mentions_break_quiet=True)
    assert why_not(TASK, named._replace(settings=open_to_it), NOW, AGE_MAX_MS) is None
    assert why_not(TASK, KNOWN._replace(settings=open_to_it), NOW, AGE_MAX_MS) == "quiet"


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_delays_double_and_end(attempt: int, chance: float) -> None:
    delay = rules.backoff_ms(attempt, 100, 5_000, chance)
    full = min(5_000, 100 * 2 ** min(attempt - 1, 20))
    assert full // 2 <= delay <= full


def test_the_breaker_follows_its_schedule() -> None:
    """H8: while a provider is down, only single probes go out, further and further apart."""
    breaker, now, calls = CircuitBreaker(), 0, list[int]()
    while now < 120_000:  # two minutes of 503 at a message every 10 ms
        if breaker.room(now, 1):
            breaker.began(1)
            breaker.failed(now, 0.999)
            calls.append(now)
        now += 10
    assert len(calls) <= FAILURES_MAX + 8
    gaps = [later - sooner for sooner, later in pairwise(calls[FAILURES_MAX - 1 :])]
    assert all(later >= sooner for sooner, later in pairwise(gaps))
    now += 60_000
    assert breaker.room(now, 50) == 1
    breaker.began(1)
    assert breaker.room(now, 50) == 0  # one probe at a time
    breaker.answered()
    assert breaker.room(now, 50) == 50


def test_a_provider_that_asks_for_time_gets_it() -> None:
    breaker = CircuitBreaker()
    breaker.failed(0, 0.5, 30_000)
    assert (breaker.room(29_999, 9), breaker.wait_ms(0)) == (0, 30_000)
    assert breaker.room(30_000, 9) == 9


def test_a_busy_target_waits_alone() -> None:
    targets = TargetBackoff()
    first = targets.busy(b"one", 0, 0.5)
    second = targets.busy(b"one", first, 0.5)
    assert second - first > first
    assert targets.not_before(b"two") == 0
    assert targets.busy(b"two", 0, 0.5, 90_000) == 90_000
    targets.good(b"one")
    assert targets.not_before(b"one") == 0


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12_000),
        ({"retry-after": "99999999"}, DELAY_MAX_MS),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"}, 30_000),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT"}, None),
    ],
)
def test_retry_after_in_both_forms(headers: dict[str, str], delay: int | None) -> None:
    assert retry_after_ms(headers) == delay
