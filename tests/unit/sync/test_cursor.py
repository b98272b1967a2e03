"""Cursors: bound to tenant, user, device and key; no changed bit is accepted (T-X4, T-F3, P19)."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim_streams.sync.cursor import TOKEN_LENGTH, Cursor, CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.kinds import from_base64url, to_base64url

KEY, OLD, FOREIGN = b"k" * 32, b"o" * 32, b"f" * 32
ADDRESS = MailboxAddress("acme", "ben", "phone", 9, 3, 9)
SIGNER = CursorSigner(KEY, OLD)


def test_round_trip_and_rotation() -> None:
    """The previous key is accepted, a foreign one is not; new cursors use the current key."""
    for position in (-1, 0, 1, 2**53 - 1):
        token = SIGNER.issue(ADDRESS, 7, position)
        assert len(token) == TOKEN_LENGTH
        assert SIGNER.open(token, ADDRESS) == Cursor(3, 7, position)
    assert SIGNER.open(CursorSigner(OLD).issue(ADDRESS, 7, 5), ADDRESS) == Cursor(3, 7, 5)
    assert SIGNER.open(CursorSigner(FOREIGN).issue(ADDRESS, 7, 5), ADDRESS) is None
    assert CursorSigner(OLD).open(SIGNER.issue(ADDRESS, 7, 5), ADDRESS) is None


def test_rotation_step_by_step() -> None:
    """P19: the next key is accepted first, then used, then alone; a removed key opens nothing."""
    old, new = CursorSigner(OLD).issue(ADDRESS, 7, 5), CursorSigner(KEY).issue(ADDRESS, 7, 5)
    steps = [((OLD, None), [old]), ((OLD, KEY), [old, new]), ((KEY, OLD), [old, new]), ((KEY, None), [new])]
    for keys, good in steps:
        signer = CursorSigner(*keys)
        assert [token for token in (old, new) if signer.open(token, ADDRESS)] == good
        assert signer.issue(ADDRESS, 7, 5) == (new if keys[0] == KEY else old)


@pytest.mark.parametrize(
    "other",
    [
        ADDRESS._replace(tenant_id="acme2"),
        ADDRESS._replace(user_id="ann"),
        ADDRESS._replace(device_id="laptop"),
        ADDRESS._replace(tenant_id="acmeben", user_id=""),
        ADDRESS._replace(tenant_id="acm", user_id="eben"),
    ],
)
def test_another_identity_is_refused(other: MailboxAddress) -> None:
    """A cursor of another tenant, user or device does not open."""
    assert SIGNER.open(SIGNER.issue(ADDRESS, 1, 5), other) is None


def test_every_flipped_bit_is_refused() -> None:
    """T-F3: every bit of 200 samples, in the bytes and in the text."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        token = SIGNER.issue(ADDRESS, rng.randrange(2**40), rng.randrange(-1, 2**53))
        raw = bytearray(from_base64url(token))
        for bit in range(len(raw) * 8):
            raw[bit // 8] ^= 1 << bit % 8
            assert SIGNER.open(to_base64url(bytes(raw)), ADDRESS) is None
            raw[bit // 8] ^= 1 << bit % 8
    text = bytearray(token.encode())
    for bit in range(len(text) * 8):
        text[bit // 8] ^= 1 << bit % 8
        changed = text.decode("latin-1")
        assert SIGNER.open(changed, ADDRESS) is None
        text[bit // 8] ^= 1 << bit % 8


def test_truncated_extended_and_swapped() -> None:
    """Parts of two good cursors do not make a third."""
    one, two = SIGNER.issue(ADDRESS, 1, 5), SIGNER.issue(ADDRESS, 1, 500)
    for token in (one[:-1], one + "A", one[:-4], "", "=" * TOKEN_LENGTH, one[:32] + two[32:]):
        assert SIGNER.open(token, ADDRESS) is None


@given(st.text(max_size=200) | st.binary(max_size=120).map(to_base64url))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_none(token: str) -> None:
    """T-F1: no text raises."""
    assert SIGNER.open(token, ADDRESS) is None


@given(st.binary(min_size=57, max_size=57))
@settings(max_examples=300, deadline=None)
def test_any_bytes_of_the_right_size_give_none(raw: bytes) -> None:
    """T-F1: nor do bytes of the right size, also with a known version and key id."""
    good = from_base64url(SIGNER.issue(ADDRESS, 1, 5))
    assert SIGNER.open(to_base64url(raw), ADDRESS) is None
    if raw[5:] != good[5:]:
        assert SIGNER.open(to_base64url(good[:5] + raw[5:]), ADDRESS) is None
