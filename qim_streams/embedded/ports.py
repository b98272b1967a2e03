"""Ports on the loopback address: find free ones, and say clearly when one that was asked for is taken.

Free ports are drawn from below the kernel's ephemeral range. A port inside that range can be taken by any
outgoing connection while its server restarts, even by a client that tries to reconnect to it and meets
itself; below the range that cannot happen.

What it does not do: hold a port. Between the check and the server's own bind somebody else may take it;
the server's start then fails and says so.
"""

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from qim_streams.embedded.errors import EmbeddedError, PortInUseError

LOOPBACK = "127.0.0.1"
FREE_PORT_MIN = 10_000
TRIES_MAX = 200
_EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_START_DEFAULT = 32_768


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True when a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of a former owner in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def accepts(port: int, host: str = LOOPBACK, timeout_s: float = 0.2) -> bool:
    """True when something accepts connections on `port`."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            # A connection to a closed port of the ephemeral range may reach itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def require_free(port: int, setting: str, host: str = LOOPBACK) -> int:
    """`port`, when a server could listen on it; PortInUseError that names `setting` otherwise."""
    if not 0 < port <= 65_535:
        raise EmbeddedError(f"{setting}: {port} is not a port; use 1 to 65535, or 0 for any free one")
    if not is_free(port, host):
        raise PortInUseError(
            f"{setting}: port {port} on {host} is taken or not allowed; stop what listens there "
            f"(`ss -ltnp 'sport = :{port}'` shows it), or set another port, or 0 for any free one"
        )
    return port


def free_ports(count: int, *, exclude: Iterable[int] = (), rng: random.Random | None = None) -> list[int]:
    """`count` different free loopback ports outside the ephemeral range and outside `exclude`."""
    source = rng or random.Random()
    end = max(FREE_PORT_MIN + 1_000, ephemeral_start())
    taken, found = set(exclude), list[int]()
    for _ in range(TRIES_MAX + count):
        if len(found) == count:
            return found
        port = source.randrange(FREE_PORT_MIN, end)
        if port not in taken and is_free(port):
            taken.add(port)
            found.append(port)
    raise EmbeddedError(
        f"no {count} free ports between {FREE_PORT_MIN} and {end - 1} on {LOOPBACK}; stop other servers "
        "or set the ports by hand"
    )


def ephemeral_start(source: Path = _EPHEMERAL_RANGE_FILE) -> int:
    """First port that the kernel gives to outgoing connections (32768 when it does not say)."""
    try:
        return int(source.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_START_DEFAULT
