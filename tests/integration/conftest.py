"""One whole stack for all tests that only use it: started at the first need, stopped at the end."""

from collections.abc import Iterator

import pytest

from tests.support.stack import StackProcess


@pytest.fixture(scope="session")
def whole_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    """A running `qim up`. Shared: use ids of your own and break nothing."""
    with StackProcess(tmp_path_factory.mktemp("whole") / "stack", "--quick") as stack:
        yield stack
