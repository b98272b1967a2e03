"""One real Kafka for the streaming tests of a session, on free loopback ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qim_streams.embedded.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running single-node Kafka; everything on it is thrown away afterwards."""
    directory: Path = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(directory, quick=True) as server:
        yield server
