"""T-M4: message ids are unique and increase, whatever the wall clock does. D8: so they are across nodes."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim_streams import hlc
from qim_streams.hlc import ClockDriftError, HybridClock

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
RESERVE_MS = 3_000


@dataclass
class Writer:
    """A clock as a writer process uses it: bound stored before it is used, restarted at will."""

    node: int
    stored_bound: int = 0
    boots: int = 0
    clock: HybridClock = field(default_factory=lambda: HybridClock(0))

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.boots += 1
        self.clock = HybridClock(node=self.node + self.boots, millis=self.stored_bound)

    def next(self, now_ms: int) -> bytes:
        if self.clock.needs_reserve(now_ms, 100):
            self.stored_bound = max(now_ms, self.clock.millis) + RESERVE_MS
            self.clock.reserve(self.stored_bound)
        return self.clock.next(now_ms)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ids"), st.integers(1, 100)),
        st.tuples(st.just("clock"), st.sampled_from((-2 * HOUR_MS, -HOUR_MS, -1, 0, 1, 999, HOUR_MS))),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("observe"), st.integers(-HOUR_MS, hlc.DRIFT_MAX_MS)),
        st.tuples(st.just("overflow"), st.just(0)),
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_ids_strictly_increase_through_everything(script: list[tuple[str, int]]) -> None:
    """Issued ids always; observed ones until a restart (a conversation's last id is then observed anew)."""
    writer, now, last, seen = Writer(7), NOW, b"", b""
    for what, amount in script:
        if what == "clock":
            now = NOW + amount
        elif what == "restart":
            writer.restart()
            seen = b""
        elif what == "observe":
            remote = hlc.encode(now + amount, 5, 2**64 - 1)
            writer.clock.observe(remote, now)
            seen = remote
        elif what == "overflow":
            writer.clock.logical = hlc.LOGICAL_MAX
        else:
            for _ in range(amount):
                fresh = writer.next(now)
                assert fresh > max(last, seen)
                last = fresh
        assert hlc.millis_of(last or b"\0" * 16) <= now + hlc.DRIFT_MAX_MS + 2 * HOUR_MS + RESERVE_MS * 30


@pytest.mark.parametrize("seed", [1])
def test_a_hundred_thousand_ids_of_a_restless_clock(seed: int) -> None:
    """100k ids with jumps, restarts and remote stamps: unique and increasing."""
    print(f"seed {seed}")
    rng, writer, now, last = random.Random(seed), Writer(1), NOW, b""
    for number in range(100_000):
        if number % 37 == 0:
            now += rng.choice((-HOUR_MS, -5_000, -1, 0, 0, 1, 3, 5_000, HOUR_MS))
            now = min(max(now, NOW - HOUR_MS), NOW + HOUR_MS)
        if number % 9_973 == 0:
            writer.restart()
        if number % 1_009 == 0:
            writer.clock.observe(hlc.encode(now + rng.randrange(HOUR_MS), 0xFFFF, 3), now)
        fresh = writer.next(now)
        assert fresh > last
        last = fresh


def test_the_logical_counter_runs_over_into_the_next_millisecond() -> None:
    clock = HybridClock(node=1, bound_ms=NOW + 10)
    ids = [clock.next(NOW) for _ in range(hlc.LOGICAL_MAX + 3)]
    assert hlc.millis_of(ids[hlc.LOGICAL_MAX]) == NOW
    assert hlc.millis_of(ids[hlc.LOGICAL_MAX + 1]) == NOW + 1
    assert ids == sorted(set(ids))


def test_no_id_reaches_the_bound_that_was_stored() -> None:
    clock = HybridClock(node=1, bound_ms=NOW)
    assert clock.next(NOW - 1) < hlc.encode(NOW, 0, 0)
    with pytest.raises(OverflowError):
        clock.next(NOW)
    clock.reserve(NOW + 1)
    assert clock.next(NOW) >= hlc.encode(NOW, 0, 0)


def test_a_stamp_from_the_far_future_is_refused_and_changes_nothing() -> None:
    clock = HybridClock(node=1, bound_ms=NOW + 10)
    before = clock.next(NOW)
    with pytest.raises(ClockDriftError):
        clock.observe(hlc.encode(NOW + hlc.DRIFT_MAX_MS + 1, 0, 0), NOW)
    assert before < clock.next(NOW) < hlc.encode(NOW + 1, 0, 0)
    with pytest.raises(ValueError, match="16 bytes"):
        clock.observe(b"short", NOW)


@pytest.mark.parametrize("seed", [2])
def test_two_nodes_with_clocks_apart_never_collide(seed: int) -> None:
    """D8: clocks 5 s behind and ahead, one set back; unique across both, increasing per conversation."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    writers = [Writer(0x1000, boots=0), Writer(0x2000, boots=0)]
    skew = [-5_000, 5_000]
    heads: dict[int, bytes] = {}
    seen: set[bytes] = set()
    count, now = 200_000, NOW
    for number in range(count):
        now += number % 50 == 0
        if number == count // 2:
            skew[1] = -60_000  # one backward step
        which = rng.randrange(2)
        writer, local = writers[which], now + skew[which]
        chat = rng.randrange(100)
        fresh = writer.next(local)
        if fresh <= heads.get(chat, b""):  # the store says CLOCK_BEHIND: observe, then again
            writer.clock.observe(heads[chat], local)
            fresh = writer.next(local)
        assert fresh > heads.get(chat, b"")
        heads[chat] = fresh
        seen.add(fresh)
    assert len(seen) == count
