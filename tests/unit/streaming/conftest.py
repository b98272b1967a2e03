"""No unit test may end the test process."""

from typing import NoReturn

import pytest

from qim_streams.streaming import doubt
from tests.unit.streaming.fakes import Died


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes asked for; the place that asked gets `Died`."""
    codes: list[int] = []

    def record(code: int) -> NoReturn:
        codes.append(code)
        raise Died(code)

    monkeypatch.setattr(doubt, "_exit", record)
    return codes
