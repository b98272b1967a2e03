"""Admission of messages: form, size, and the sender's interval in a large group."""

from collections.abc import Sequence

from qim_streams.commit.admission import Admission, AdmissionLimits, Wait, check_chat
from qim_streams.commit.outcome import SendRequest
from qim_streams.ids import direct_conversation_id
from qim_streams.quotas.buckets import TenantQuotas

LIMITS = AdmissionLimits(body_bytes_max=10, large_group_members=100, sender_interval_ms=3_000)


def send(chat: str = "g", sender: str = "ann", **change: object) -> SendRequest:
    return SendRequest("t", chat, sender, 1, "phone", "m1", b"hi")._replace(**change)


def waits(admission: Admission, requests: Sequence[SendRequest], now_ms: int) -> list[int]:
    """How long each has to wait, after everything that was counted is given back."""
    tickets = admission.tickets(requests, now_ms)
    for request, ticket in zip(requests, tickets, strict=True):
        admission.give_back(request, ticket, now_ms)
    return [ticket.ms if isinstance(ticket, Wait) else 0 for ticket in tickets]


def test_what_is_wrong_in_itself() -> None:
    admission = Admission(LIMITS)
    assert admission.check(send()) is None
    assert admission.check(send(body=b"x" * 10)) is None
    too_large = admission.check(send(body=b"x" * 11))
    assert too_large is not None
    assert (too_large.code, too_large.retry_after_ms) == ("BODY_TOO_LARGE", None)
    for name in ("tenant_id", "conversation_id", "sender_id", "sender_device_id", "client_message_id"):
        for wrong in ("", "a:b", "a\0b", "x" * 129, "{a}"):
            refusal = admission.check(send(**{name: wrong}))
            assert refusal is not None, (name, wrong)
            assert refusal.code == "FIELD_INVALID"
    assert admission.check(send(to_user_id="no:id")) is not None


def test_a_chat_to_be_made_must_be_that_of_its_users() -> None:
    chat = direct_conversation_id("t", "ann", "bob")
    assert check_chat(send(chat, to_user_id="bob")) is None
    assert check_chat(send(chat, to_user_id="cat")) is not None
    assert check_chat(send(chat, sender="eve", to_user_id="bob")) is not None


def test_the_interval_counts_from_the_last_new_message_in_a_large_group() -> None:
    admission = Admission(LIMITS)
    assert waits(admission, [send()], 1_000) == [0]
    admission.learn(send(), 2, 100, 1_000)
    assert waits(admission, [send()], 1_001) == [2_999]
    assert waits(admission, [send(sender="bob")], 1_001) == [0]
    assert waits(admission, [send("other")], 1_001) == [0]
    assert waits(admission, [send()], 4_000) == [0]
    assert waits(admission, [send()], 4_000) == [0], "asking counts for nothing"


def test_of_several_at_once_one_may_be_new() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(sender="bob"), 2, 100, 0)
    assert waits(admission, [send(), send(), send(sender="bob"), send()], 10_000) == [0, 3_000, 0, 3_000]


def test_small_groups_have_no_interval_and_a_group_may_shrink() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(), 2, 99, 1_000)
    assert waits(admission, [send(), send()], 1_001) == [0, 0]
    admission.learn(send(), 2, 100, 2_000)
    assert waits(admission, [send()], 2_001) == [2_999]
    admission.learn(send(sender="bob"), 2, 99, 2_002)
    assert waits(admission, [send()], 2_003) == [0]


def test_a_clock_that_went_back_locks_nobody_out() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(), 2, 100, 9_000_000)
    assert waits(admission, [send()], 5_000_000) == [0]


def test_the_interval_can_be_off() -> None:
    admission = Admission(AdmissionLimits(10, 100, 0))
    admission.learn(send(), 2, 100_000, 1_000)
    assert waits(admission, [send(), send()], 1_000) == [0, 0]


def test_memory_is_bounded() -> None:
    """P16: forgetting lets a sender speak once too early, never too late."""
    admission = Admission(LIMITS, senders_max=10, conversations_max=5)
    for number in range(1_000):
        admission.learn(send(f"g{number}", f"u{number}"), 2, 100, number)
    assert len(admission._last_ms) == 10
    assert len(admission._sizes) == 5
    assert waits(admission, [send("g0", "u0")], 1_000) == [0]


def codes(admission: Admission, requests: Sequence[SendRequest], now_ms: int) -> list[str]:
    """Of each message: the code of its refusal, or ""."""
    tickets = admission.tickets(requests, now_ms)
    return [ticket.code if isinstance(ticket, Wait) else "" for ticket in tickets]


def test_a_conversation_has_a_rate_of_its_own() -> None:
    """L2: what is over the burst waits for as long as the rate says; other conversations do not."""
    admission = Admission(AdmissionLimits(10, 100, 0, conversation_per_s=10, conversation_burst_ms=300))
    assert codes(admission, [send()] * 5, 1_000) == ["", "", "", *["CONVERSATION_BUSY"] * 2]
    assert codes(admission, [send("other")], 1_000) == [""]
    (ticket,) = admission.tickets([send()], 1_000)
    assert isinstance(ticket, Wait)
    assert codes(admission, [send()] * 2, 1_000 + ticket.ms) == ["", "CONVERSATION_BUSY"]


def test_a_tenant_pays_for_recipients_and_not_for_messages() -> None:
    """L3: the size of a group is charged once it is known; who owes waits; the next tenant does not."""
    admission = Admission(LIMITS, TenantQuotas(per_s=1_000, burst_s=1))
    first, *_ = admission.tickets([send()], 0)
    assert first == 2, "taken for a direct chat until it is known"
    admission.learn(send(), first, 3_000, 0)
    (ticket,) = admission.tickets([send("direct")], 0)
    assert isinstance(ticket, Wait)
    assert ticket.code == "QUOTA_EXCEEDED"
    assert 2_000 <= ticket.ms <= 2_010
    assert codes(admission, [send("direct")], ticket.ms - 1) == ["QUOTA_EXCEEDED"]
    assert codes(admission, [send("direct")], ticket.ms + 1) == [""]
    assert codes(admission, [send(tenant_id="other")], 0) == [""]


def test_what_was_no_new_message_costs_nothing() -> None:
    """Repeats and refusals of other kinds are given back, to the conversation and to the tenant."""
    limits = AdmissionLimits(10, 100, 0, conversation_per_s=1, conversation_burst_ms=1_000)
    admission = Admission(limits, TenantQuotas(per_s=2, burst_s=1))
    for _ in range(50):
        (ticket,) = admission.tickets([send()], 0)
        assert ticket == 2
        admission.give_back(send(), ticket, 0)
    assert codes(admission, [send(), send()], 0) == ["", "CONVERSATION_BUSY"]


def test_a_message_that_the_tenant_may_not_send_is_not_counted_in_its_conversation() -> None:
    limits = AdmissionLimits(10, 100, 0, conversation_per_s=1, conversation_burst_ms=2_000)
    admission = Admission(limits, TenantQuotas(per_s=2, burst_s=1))
    assert codes(admission, [send(), send("b"), send("b"), send("b")], 0) == ["", *["QUOTA_EXCEEDED"] * 3]
    assert codes(admission, [send("b"), send("b")], 60_000) == ["", "QUOTA_EXCEEDED"]
