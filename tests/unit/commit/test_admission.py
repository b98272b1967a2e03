"""Admission of messages: form, size, and the sender's interval in a large group."""

from qim_streams.commit.admission import Admission, AdmissionLimits, check_chat
from qim_streams.commit.outcome import SendRequest
from qim_streams.ids import direct_conversation_id

LIMITS = AdmissionLimits(body_bytes_max=10, large_group_members=100, sender_interval_ms=3_000)


def send(chat: str = "g", sender: str = "ann", **change: object) -> SendRequest:
    return SendRequest("t", chat, sender, 1, "phone", "m1", b"hi")._replace(**change)


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
    assert admission.waits_ms([send()], 1_000) == [0]
    admission.learn(send(), 100, 1_000)
    assert admission.waits_ms([send()], 1_001) == [2_999]
    assert admission.waits_ms([send(sender="bob")], 1_001) == [0]
    assert admission.waits_ms([send("other")], 1_001) == [0]
    assert admission.waits_ms([send()], 4_000) == [0]
    assert admission.waits_ms([send()], 4_000) == [0], "asking counts for nothing"


def test_of_several_at_once_one_may_be_new() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(sender="bob"), 100, 0)
    assert admission.waits_ms([send(), send(), send(sender="bob"), send()], 10_000) == [0, 3_000, 0, 3_000]


def test_small_groups_have_no_interval_and_a_group_may_shrink() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(), 99, 1_000)
    assert admission.waits_ms([send(), send()], 1_001) == [0, 0]
    admission.learn(send(), 100, 2_000)
    assert admission.waits_ms([send()], 2_001) == [2_999]
    admission.learn(send(sender="bob"), 99, 2_002)
    assert admission.waits_ms([send()], 2_003) == [0]


def test_a_clock_that_went_back_locks_nobody_out() -> None:
    admission = Admission(LIMITS)
    admission.learn(send(), 100, 9_000_000)
    assert admission.waits_ms([send()], 5_000_000) == [0]


def test_the_interval_can_be_off() -> None:
    admission = Admission(AdmissionLimits(10, 100, 0))
    admission.learn(send(), 100_000, 1_000)
    assert admission.waits_ms([send(), send()], 1_000) == [0, 0]


def test_memory_is_bounded() -> None:
    """P16: forgetting lets a sender speak once too early, never too late."""
    admission = Admission(LIMITS, senders_max=10, conversations_max=5)
    for number in range(1_000):
        admission.learn(send(f"g{number}", f"u{number}"), 100, number)
    assert len(admission._last_ms) == 10
    assert len(admission._large) == 5
    assert admission.waits_ms([send("g0", "u0")], 1_000) == [0]
