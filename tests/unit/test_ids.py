"""Derived ids: golden vectors (T-M6) and the text id alphabet."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.hlc import encode
from qim_streams.ids import (
    direct_conversation_id,
    dispatch_id,
    event_id,
    is_direct_conversation_id,
    is_name,
    is_text_id,
)
from qim_streams.wire.kinds import Malformed, Text

MESSAGE = encode(1_700_000_000_123, 7, 0x0123456789ABCDEF)


def test_golden_message_id() -> None:
    """T-M6: written once; a change here breaks every stored record."""
    assert MESSAGE.hex() == "018bcfe5687b00070123456789abcdef"


def test_golden_dispatch_ids() -> None:
    """T-M6, Spec: §2."""
    assert dispatch_id(MESSAGE, 0).hex() == "94a93d20a9a88d7cc7525e220483008e"
    assert dispatch_id(MESSAGE, 255).hex() == "86c05803edb3058c3a38c39652f6bc50"
    by_the_rule = blake3(b"qim.group-dispatch.v1\0" + MESSAGE + bytes((0, 0, 0, 255))).digest()[0:16]
    assert dispatch_id(MESSAGE, 255) == by_the_rule


def test_golden_event_ids() -> None:
    """T-M6: the same for every replay, another one for another user or kind."""
    assert event_id(MESSAGE, "ann").hex() == "48e9d6008e173bba22cd74d2ffbe87ad"
    assert event_id(MESSAGE, "ann", 1).hex() == "c625d62b3e39cceac526d506839e36e5"
    assert event_id(MESSAGE, "bob").hex() == "8723122cf8c34b0b2b0fa2b93ec18781"


def test_golden_direct_conversation_ids() -> None:
    """T-M6: in either order of the users, bound to the tenant."""
    expected = "d.002ac77cc44ec658c435deae4b74b3e2"
    assert direct_conversation_id("acme", "ann", "bob") == expected
    assert direct_conversation_id("acme", "bob", "ann") == expected
    assert direct_conversation_id("acme", "ann", "ann") == "d.0e185ff48c5579e089e38fbeda8d6995"
    assert direct_conversation_id("other", "ann", "bob") == "d.b9aa07ff4e9a79d251ab3853d2da6b7f"
    assert is_direct_conversation_id(expected)
    assert is_text_id(expected)


@pytest.mark.parametrize("good", ["a", "A9", "user@host.example", "a_b-c~d", "0" * 128])
def test_text_ids(good: str) -> None:
    assert is_text_id(good)


@pytest.mark.parametrize(
    "bad", ["", "a" * 129, ".a", "-a", "a:b", "a b", "a\0b", "a\n", "ä", "a/b", "{a}", "a*", None, 7, b"a"]
)
def test_what_is_no_text_id(bad: object) -> None:
    assert not is_text_id(bad)


@given(st.text(max_size=40))
def test_a_name_is_what_a_frame_can_carry(text: str) -> None:
    """The rule of those who take names is that of those who send them."""
    try:
        carried = Text(16).take(text) == text
    except Malformed:
        carried = False
    assert is_name(text, 16) is carried


@pytest.mark.parametrize("bad", ["\0", "a\x7f", "\ud800", "a" * 17, None, b"a"])
def test_what_is_no_name(bad: object) -> None:
    assert not is_name(bad, 16)


@given(st.text(max_size=200))
def test_a_text_id_never_holds_a_separator(text: str) -> None:
    """T-X5: no id can leave its place in a key, a topic or a path."""
    if is_text_id(text):
        assert text.isascii()
        assert not set(text) & set(":{}\0/\\ \t\r\n*?[]")
