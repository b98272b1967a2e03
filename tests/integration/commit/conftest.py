"""One real Kafka and one real Redis for the tests of real writers, with the declared topics on them."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from qim_streams.embedded.stack import EmbeddedStack
from qim_streams.settings import Settings
from qim_streams.streaming import topics
from tests.support.writer_process import SECRET


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    directory = tmp_path_factory.mktemp("writer-servers")
    with EmbeddedStack(directory, broker="kafka", quick=True) as stack:
        settings = Settings(
            brokers=stack.brokers, redis_url=SecretStr(stack.redis_url), internal_secret=SecretStr(SECRET)
        )
        topics.apply(topics.admin_client(settings.brokers), topics.load().resolve_for(settings))
        yield settings
