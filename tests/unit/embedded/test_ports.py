"""Free ports, and a clear word about taken ones."""

import random
import socket
from pathlib import Path

import pytest

from qim_streams.embedded.errors import EmbeddedError, PortInUseError
from qim_streams.embedded.ports import (
    FREE_PORT_MIN,
    accepts,
    ephemeral_start,
    free_ports,
    is_free,
    require_free,
)


@pytest.fixture
def listening() -> "socket.socket":
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as server:
        yield server


def test_free_ports_are_different_free_and_below_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(FREE_PORT_MIN <= port < ephemeral_start() and is_free(port) for port in ports)


def test_free_ports_leave_out_what_is_excluded_and_what_is_taken(listening: socket.socket) -> None:
    taken = listening.getsockname()[1]
    seed = 7
    first = free_ports(1, rng=random.Random(seed))
    again = free_ports(1, rng=random.Random(seed), exclude=first)
    assert again != first

    class AlwaysTaken(random.Random):
        def randrange(self, *args: int) -> int:
            return taken

    with pytest.raises(EmbeddedError, match="no 1 free ports"):
        free_ports(1, rng=AlwaysTaken())


def test_a_taken_port_names_the_setting_and_the_remedy(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    assert not is_free(port)
    assert accepts(port)
    with pytest.raises(PortInUseError, match=f"kafka_port: port {port} .* taken.*0 for any free one"):
        require_free(port, "kafka_port")


def test_a_free_port_is_given_back_and_accepts_nobody() -> None:
    port = free_ports(1)[0]
    assert require_free(port, "redis_port") == port
    assert not accepts(port)


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(EmbeddedError, match="is not a port"):
        require_free(port, "redis_port")


def test_the_ephemeral_range_has_a_default(tmp_path: Path) -> None:
    assert ephemeral_start(tmp_path / "missing") == 32_768
    (tmp_path / "range").write_text("20000\t61000\n")
    assert ephemeral_start(tmp_path / "range") == 20_000
