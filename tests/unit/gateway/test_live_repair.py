"""A lost live stream goes on once pulls have covered what was lost, however they came (A5, A16)."""

from qim_streams.gateway.live import Fill, LiveStream, Phase
from qim_streams.sync.pull import PulledEvent


def event(seq: int) -> PulledEvent:
    return PulledEvent(seq, 0, bytes(16), 0, 0, None, b"")


def flowing(position: int) -> LiveStream:
    """A stream that has pushed everything up to `position`."""
    stream = LiveStream(position, 10_000)
    stream.online()
    assert stream.ready(1, position) == Fill(position, position)
    stream.filled(position)
    assert stream.phase is Phase.FLOWING
    return stream


def test_what_was_pulled_before_the_loss_counts() -> None:
    stream = flowing(100)
    stream.pulled(100, 120)
    assert stream.lose(130) == 130
    assert stream.pulled(120, 130) == Fill(130, 130)


def test_what_was_pulled_out_of_order_before_the_loss_counts() -> None:
    stream = flowing(100)
    stream.pulled(110, 120)
    stream.lose(130)
    assert stream.pulled(120, 130) is None
    assert stream.pulled(100, 110) == Fill(130, 130)


def test_pulls_from_the_push_position_are_enough() -> None:
    stream = flowing(100)
    assert stream.push(1, [event(105)])
    stream.lose(130)
    assert stream.pulled(105, 130) == Fill(130, 130)


def test_a_gap_in_the_pulls_keeps_the_stream_lost() -> None:
    stream = flowing(100)
    stream.lose(130)
    assert stream.pulled(101, 130) is None
    assert stream.phase is Phase.LOST
