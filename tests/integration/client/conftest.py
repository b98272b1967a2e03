"""A stack of their own for tests that kill its gateway and overrun its mailboxes."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.scenarios.conftest import Cast
from tests.support.stack import StackProcess

ENTRIES_MAX = 4_000  # of a mailbox; the smallest that may be set


@pytest.fixture(scope="module")
def rough_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    """A running `qim up` that may be treated badly."""
    env = {"QIM_MAILBOX_ENTRIES_MAX": str(ENTRIES_MAX)}
    with StackProcess(tmp_path_factory.mktemp("rough") / "stack", env=env) as stack:
        yield stack


@pytest.fixture
async def cast(rough_stack: StackProcess) -> AsyncIterator[Cast]:
    people = Cast(rough_stack, f"c{secrets.token_hex(4)}")
    yield people
    await people.close()
