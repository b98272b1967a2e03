"""One whole stack for all tests that only use it: started at the first need, stopped at the end.

These tests come last of the integration tests: a stack that waits for the end takes a third of a processor.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.redis_tier import connect
from qim_streams.settings import Settings
from tests.support.forgetful_redis import ForgetfulRedis
from tests.support.stack import StackProcess


@pytest.fixture(scope="session")
def whole_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProcess]:
    """A running `qim up`. Shared: use ids of your own and break nothing."""
    with StackProcess(tmp_path_factory.mktemp("whole") / "stack", "--quick", "--web") as stack:
        yield stack
        assert stack.refused_commands() == []  # of Redis, under the roles' user
        # A role that ends by itself is started again, which waits hide from a test.
        died = stack.ended_by_themselves()
        assert not died, "\n".join([*died, stack.log_ends()])


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[ForgetfulRedis]:
    """A Redis for one test, which may make it lose what was written last."""
    with EmbeddedRedis(tmp_path / "redis", progress=lambda _: None) as server:
        client = connect(Settings(redis_url=SecretStr(server.url)))
        yield ForgetfulRedis(server, client)
        await client.aclose()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of this directory; those of others stay where they are."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    ours = sorted(
        (items[place] for place in places),
        key=lambda item: "whole_stack" in getattr(item, "fixturenames", ()),
    )
    for place, item in zip(places, ours, strict=True):
        items[place] = item
