"""When the clients of a gateway that stops are asked to come back. Spec: §11."""

import pytest

from qim_streams.gateway.server import GOODBYE_MIN_MS, GOODBYE_SPREAD_MS, goodbye_ms


@pytest.mark.parametrize(
    ("clients", "latest"),
    [(1, 5), (20, 100), (600, GOODBYE_SPREAD_MS), (50_000, GOODBYE_SPREAD_MS)],
)
def test_the_fewer_there_are_the_sooner_they_come_back(clients: int, latest: int) -> None:
    """A clean restart of a gateway with few clients is not felt for seconds (target: below two)."""
    assert goodbye_ms(clients, 0.0) == GOODBYE_MIN_MS
    assert goodbye_ms(clients, 0.5) == GOODBYE_MIN_MS + latest // 2
    assert GOODBYE_MIN_MS <= goodbye_ms(clients, 0.999_999) < GOODBYE_MIN_MS + latest
