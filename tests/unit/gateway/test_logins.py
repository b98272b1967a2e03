"""Signals of logins: who is meant by one, and who is not."""

from qim_streams.gateway.logins import MARK, ended_by, signal


def test_a_signal_ends_sessions_up_to_its_epoch() -> None:
    """A late one harms no later session of the device."""
    data = signal("pad", {"phone": 5, "laptop": 7})
    assert data.startswith(MARK)
    assert [ended_by(data, "phone", epoch) for epoch in (4, 5, 6)] == ["pad", "pad", None]
    assert ended_by(data, "laptop", 7) == "pad"
    assert ended_by(data, "pad", 1) is None


def test_signals_that_nobody_understands_end_nothing() -> None:
    for data in (MARK, MARK + b"pad", MARK + b"pad\0phone", MARK + b"pad\0phone\0x", MARK + b"\xff\0\xff"):
        assert ended_by(data, "phone", 1) is None
