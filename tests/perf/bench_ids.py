"""Ids and the clock: one call each per message, per dispatch and per recipient. Spec: §2."""

from blake3 import blake3

from qim_streams import hlc, ids
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import MESSAGE, NOW_MS, PEER


@benchmark("ids.dispatch_id")
def dispatch_id() -> Case[bytes]:
    """The id of a dispatch, as the contract defines it."""
    message_id = MESSAGE.message_id
    material = b"qim.group-dispatch.v1\0" + message_id + bytes([0, 0, 0, 5])
    return Case(lambda: ids.dispatch_id(message_id, 5), always(blake3(material).digest(16)))


@benchmark("ids.event_id")
def event_id() -> Case[bytes]:
    """The id of an event, one per device that is pushed to; the same in every version."""
    message_id = MESSAGE.message_id
    expected = bytes.fromhex("005550776bcc4509640fe7760d98b2dd")
    return Case(lambda: ids.event_id(message_id, PEER), always(expected))


@benchmark("ids.hlc_next")
def hlc_next() -> Case[bytes]:
    """The next message id while the wall clock stands."""
    clock = hlc.HybridClock(node=7, bound_ms=hlc.MILLIS_MAX)
    before = clock.next(NOW_MS)
    return Case(lambda: clock.next(NOW_MS), lambda answer: answer > before and len(answer) == 16)
