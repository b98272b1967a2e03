"""One way to the log in the words of three drivers; the long form on a real broker is slow."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from qim_streams.errors import ConfigError
from qim_streams.kafka_access import KafkaAccess, access_of
from qim_streams.redis_tier import tls_options
from qim_streams.settings import Settings, load_settings
from qim_streams.streaming.app import credentials
from qim_streams.streaming.producer import ProducerSpec
from tests.support.certificates import Authority


@pytest.fixture
def secured(tmp_path: Path) -> Settings:
    """Settings with everything."""
    authority = Authority(tmp_path)
    pair, password = authority.issue("role"), tmp_path / "password"
    password.write_text("of-the-log\n")
    return load_settings(
        brokers="b1:9092,b2:9092",
        kafka_tls=True,
        kafka_tls_ca_file=authority.ca,
        kafka_tls_cert_file=pair.cert,
        kafka_tls_key_file=pair.key,
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_user="qim",
        kafka_sasl_password_file=password,
    )


def test_in_the_clear_nothing_is_added() -> None:
    assert access_of("b:1").librdkafka() == {"bootstrap.servers": "b:1"}
    assert access_of("b:1").aiokafka() == {"bootstrap_servers": "b:1", "security_protocol": "PLAINTEXT"}
    assert credentials(access_of("b:1")) is None
    assert f"{access_of('b:1')}" == "b:1"


def test_with_everything_each_driver_is_told(secured: Settings) -> None:
    access = secured.kafka
    told = access.librdkafka()
    assert told["security.protocol"] == "SASL_SSL"
    assert told["ssl.endpoint.identification.algorithm"] == "https"
    assert (told["sasl.mechanism"], told["sasl.username"], told["sasl.password"]) == (
        "SCRAM-SHA-512",
        "qim",
        "of-the-log",
    )
    assert {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"} <= told.keys()
    given = access.aiokafka()
    assert (given["security_protocol"], given["sasl_plain_password"]) == ("SASL_SSL", "of-the-log")
    assert given["ssl_context"].check_hostname
    faust: Any = credentials(access)
    assert (faust.protocol.value, faust.mechanism.value, faust.username) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
        "qim",
    )
    producer = ProducerSpec(access, "x").config()
    assert producer["sasl.password"] == "of-the-log"
    assert "of-the-log" not in f"{access!r} {access} {secured!r} {ProducerSpec(access, 'x')!r}"


def test_tls_without_sasl_and_sasl_without_tls() -> None:
    tls: Any = credentials(KafkaAccess("b:1", tls=True))
    assert tls.protocol.value == KafkaAccess("b:1", tls=True).protocol == "SSL"
    plain = KafkaAccess("b:1", mechanism="PLAIN", user="u", password="p")
    assert plain.protocol == "SASL_PLAINTEXT"
    made: Any = credentials(plain)
    assert made.protocol.value == "SASL_PLAINTEXT"
    assert not {name for name in plain.librdkafka() if name.startswith("ssl.")}


def test_redis_is_checked_under_rediss_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = Settings(redis_url=SecretStr("rediss://r"), redis_tls_ca_file=authority.ca)
    options = tls_options(settings, "rediss://r")
    assert (options["ssl_cert_reqs"], options["ssl_check_hostname"]) == ("required", True)
    assert options["ssl_ca_certs"] == str(authority.ca)
    assert tls_options(settings, "redis://r") == {}
    with pytest.raises(ConfigError, match="redis_tls_ca_file"):
        tls_options(Settings(redis_tls_ca_file=tmp_path / "none"), "rediss://r")
