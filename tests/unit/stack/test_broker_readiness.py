"""A broker is ready when its topics exist; one that stops answering is not ready yet: the stack waits."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from qim_streams.embedded.readiness import probe
from qim_streams.embedded.roles import RoleSpec
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings
from qim_streams.stack import run
from qim_streams.streaming import topics


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, brokers="127.0.0.1:9")


def broker(settings: Settings) -> RoleSpec:
    return run._with_topics(RoleSpec("kafka", ("true",), ready=lambda: True), settings)


async def test_topics_exist(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "apply", lambda *_: [])
    assert await probe(broker(settings).ready) is None


async def test_a_broker_that_stops_answering_is_not_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed or frozen between its first answer and the topics: the stack waits and does not fail."""

    def gone(*_: object) -> list[str]:
        down = KafkaException(KafkaError(KafkaError._TRANSPORT))
        raise ConfigError("the topics cannot be listed") from down

    monkeypatch.setattr(topics, "apply", gone)
    missing = await probe(broker(settings).ready)
    assert missing is not None
    assert "127.0.0.1:9" in missing


async def test_a_topic_that_contradicts_itself_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not heal a wrong declaration."""

    def wrong(*_: object) -> list[str]:
        raise ConfigError("topics.yaml: no such profile")

    monkeypatch.setattr(topics, "apply", wrong)
    with pytest.raises(ConfigError, match=r"broker 127\.0\.0\.1:9: topics\.yaml"):
        await probe(broker(settings).ready)
