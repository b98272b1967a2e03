"""The door: handshakes per address, strangers per address, and how much it remembers. P17, T-X5."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import ConfigError
from qim_streams.gateway import door as module
from qim_streams.gateway.door import Door, DoorBounds, networks


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = Clock()
    door = Door(DoorBounds(10, 5, 0), clock)
    assert [door.admits("192.0.2.1") for _ in range(7)] == [True] * 5 + [False] * 2
    assert door.admits("192.0.2.2")
    clock.now_s += 0.31
    assert [door.admits("192.0.2.1") for _ in range(4)] == [True] * 3 + [False]
    clock.now_s += 1_000
    assert [door.admits("192.0.2.1") for _ in range(6)] == [True] * 5 + [False]


def test_strangers_are_bounded_until_they_sign_on_or_go() -> None:
    door = Door(DoorBounds(0, 1, 3), Clock())
    assert [door.admits("192.0.2.1") for _ in range(4)] == [True, True, True, False]
    door.recount({"192.0.2.1": 2})  # one has signed on
    assert [door.admits("192.0.2.1") for _ in range(2)] == [True, False]
    door.recount({})
    assert door.admits("192.0.2.1")


def test_a_household_of_ipv6_is_one_and_a_balancer_nobody() -> None:
    door = Door(DoorBounds(1, 1, 0, networks("10.0.0.0/8, ::1/128")), Clock())
    assert door.caller("2001:db8:1:2:3::4") == door.caller("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert door.caller("fe80::1%eth0") == "fe80::/64"
    assert door.caller("::ffff:192.0.2.1") == "192.0.2.1"
    assert door.caller("::ffff:10.1.2.3") is None
    assert door.caller("::1") is None
    assert all(door.admits("10.9.9.9") for _ in range(1_000))
    assert door.addresses == 0


def test_memory_is_bounded_whoever_knocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 100)
    door = Door(DoorBounds(1, 1, 0), Clock())
    for number in range(5_000):
        assert door.admits(str(ipaddress.ip_address(number + 2**24)))
    assert door.addresses == 100


def test_networks_that_are_none_are_named() -> None:
    with pytest.raises(ConfigError, match="door_trusted"):
        networks("10.0.0.0/8, nowhere")


@given(st.lists(st.tuples(st.sampled_from(["192.0.2.1", "192.0.2.2"]), st.floats(0, 2)), max_size=80))
def test_no_more_than_burst_and_rate_ever(knocks: list[tuple[str, float]]) -> None:
    """In any stretch of time: at most the burst and what the rate gives in it."""
    clock, rate, burst = Clock(), 3.0, 4
    door = Door(DoorBounds(rate, burst, 0), clock)
    admitted: dict[str, list[float]] = {}
    for host, wait_s in knocks:
        clock.now_s += wait_s
        if door.admits(host):
            admitted.setdefault(host, []).append(clock.now_s)
    for times in admitted.values():
        for first, start in enumerate(times):
            for count, end in enumerate(times[first:], 1):
                assert count <= burst + (end - start) * rate + 1e-6
