"""One real Kafka and one real Redis for the tests of both stages, with the declared topics on them."""

from collections.abc import Iterator

import pytest

from qim_streams.embedded.stack import EmbeddedStack
from qim_streams.streaming import topics
from tests.integration.pipeline.stages import Stages, stage_settings


@pytest.fixture
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Empty logs and stores, and no worker yet; everything is killed and thrown away afterwards."""
    directory = tmp_path_factory.mktemp("stages")
    with EmbeddedStack(directory / "servers", broker="kafka", quick=True) as servers:
        settings = stage_settings(servers.brokers, servers.redis_url, directory)
        topics.apply(topics.admin_client(settings.brokers), topics.load().resolve_for(settings))
        stages = Stages(settings, directory)
        try:
            yield stages
        finally:
            stages.close()
