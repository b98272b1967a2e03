"""Door: how many connections one address may open, and how many of its may be unknown to us.

Before a client has signed on nothing is known of it but its address, and a handshake (TLS above all) costs a
thousand times what asking for it costs. So each address has a bucket of handshakes and a bound on
connections that have not signed on. Of IPv6 the first 64 bits count: a household has the rest to choose
from.

Addresses of a balancer stand for many clients: those networks are named, and not counted; then the balancer
has to bound them.

Invariants: pure but for its counts; the clock comes in; at most `ADDRESSES_MAX` buckets are kept, and the
one that was used longest ago gives way, full again when it comes back. Strangers are counted anew by the
owner's sweep; between two sweeps every connection counts as one, also if it has signed on meanwhile.

Spec: §3.1; reliability P17.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from qim_streams.errors import ConfigError

ADDRESSES_MAX: Final = 10_000
_PREFIX_BITS: Final = 64
Network = IPv4Network | IPv6Network


class DoorBounds(NamedTuple):
    """Per address. `handshakes_per_s` 0: however many; `strangers_max` 0: however many."""

    handshakes_per_s: float
    burst: int
    strangers_max: int
    trusted: tuple[Network, ...] = ()


class Door:
    """`now_s` is a monotonic clock."""

    def __init__(self, bounds: DoorBounds, now_s: Callable[[], float]) -> None:
        self._bounds, self._now_s = bounds, now_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, at
        self._strangers: dict[str, int] = {}

    @property
    def addresses(self) -> int:
        """How many are remembered."""
        return len(self._buckets)

    def admits(self, host: str) -> bool:
        """Whether a connection from `host` may begin a handshake; it counts from now on."""
        who = self.caller(host)
        if who is None:
            return True
        bounds = self._bounds
        if bounds.strangers_max and self._strangers.get(who, 0) >= bounds.strangers_max:
            return False
        if bounds.handshakes_per_s and not self._take(who):
            return False
        self._strangers[who] = self._strangers.get(who, 0) + 1
        return True

    def recount(self, strangers: Mapping[str, int]) -> None:
        """Who has how many connections that have not signed on, by `caller`."""
        self._strangers = dict(strangers)

    def strangers_of(self, host: str) -> int:
        """How many connections of `host` count as strangers now."""
        who = self.caller(host)
        return 0 if who is None else self._strangers.get(who, 0)

    def caller(self, host: str) -> str | None:
        """What `host` counts as; None: it is not counted."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return host[:64]
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._bounds.trusted):
            return None
        if isinstance(address, IPv6Address):
            return str(IPv6Network((int(address) >> _PREFIX_BITS << _PREFIX_BITS, _PREFIX_BITS)))
        return str(address)

    def _take(self, who: str) -> bool:
        now_s = self._now_s()
        full = float(self._bounds.burst)
        left, at_s = self._buckets.pop(who, (full, now_s))
        left = min(full, left + (now_s - at_s) * self._bounds.handshakes_per_s)
        taken = left >= 1
        self._buckets[who] = (left - taken, now_s)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return taken


def networks(text: str) -> tuple[Network, ...]:
    """The networks of a comma separated list; ConfigError for one that is none."""
    try:
        return tuple(ip_network(one.strip()) for one in text.split(",") if one.strip())
    except ValueError as error:
        raise ConfigError(f"door_trusted: {error}; give networks such as 10.0.0.0/8") from None
