"""A whole stack on secured links: the log by TLS, client certificates and SCRAM, Redis by TLS with
certificates and a user of its own, links between roles by mutual TLS, gateway, API and web views by TLS.

The long form: it starts a broker and every role. `tests/unit/test_tls.py` has the pieces.
"""

import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import KafkaException
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.kafka_access import KafkaAccess
from qim_streams.redis_tier import connect, translated
from qim_streams.settings import Settings
from qim_streams.streaming.topics import admin_client
from tests.support.certificates import Authority, Pair
from tests.support.exposure import descendants, in_arguments, in_files
from tests.support.secured_servers import (
    PASSWORD,
    USER,
    RedisEnd,
    SecuredKafka,
    TlsEnd,
    TlsFront,
    TlsRedis,
    redis_that_knows_tls,
)
from tests.support.stack import StackProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(500)]
BODY = "under-lock-and-key"


class Secured:
    """The servers, the authority, and the settings that lead there."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "pki")
        self.kafka = SecuredKafka(directory / "kafka", self.authority)
        self.redis = self._redis(directory / "redis", redis_that_knows_tls())
        self.client: Pair = self.authority.issue("role", "qim-internal", "127.0.0.1")
        self.password_file = directory / "kafka-password"
        self.password_file.write_text(PASSWORD + "\n")

    def _redis(self, directory: Path, program: str | None) -> EmbeddedRedis:
        """One that ends TLS itself, if there is one here."""
        if program is None:
            return EmbeddedRedis(directory)
        return TlsRedis(directory, program, self.authority.issue("redis"), self.authority.ca)

    def environment(self, front: TlsEnd) -> dict[str, str]:
        """What the roles are told."""
        ca, cert, key = str(self.authority.ca), str(self.client.cert), str(self.client.key)
        password = self.redis.roles_url.partition(":")[2].partition(":")[2].partition("@")[0]
        links = {
            f"QIM_{link}_TLS_{part}_FILE": value
            for link in ("REDIS", "KAFKA", "INTERNAL")
            for part, value in (("CA", ca), ("CERT", cert), ("KEY", key))
        }
        servers = {
            f"QIM_{link}_TLS_{part}_FILE": value
            for link in ("GATEWAY", "API")
            for part, value in (("CERT", cert), ("KEY", key))
        }
        return {
            **links,
            **servers,
            "QIM_BROKERS": self.kafka.secure,
            "QIM_KAFKA_TLS": "true",
            "QIM_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "QIM_KAFKA_SASL_USER": USER,
            "QIM_KAFKA_SASL_PASSWORD_FILE": str(self.password_file),
            "QIM_REDIS_URL": f"rediss://qim:{password}@127.0.0.1:{front.port}/0",
            "QIM_INTERNAL_TLS_NAME": "qim-internal",
            "SSL_CERT_FILE": ca,  # what a client of the gateway trusts
        }


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.kafka, made.redis:
        made.kafka.allow()
        yield made


@pytest.fixture(scope="module")
def front(servers: Secured) -> Iterator[TlsEnd]:
    if isinstance(servers.redis, TlsRedis):
        yield RedisEnd(servers.redis)
        return
    pair = servers.authority.issue("redis")
    with TlsFront(servers.redis.port, pair, servers.authority.ca) as made:
        yield made


def access(servers: Secured, **changes: Any) -> KafkaAccess:
    """The way to the log."""
    ways = {
        "servers": servers.kafka.secure,
        "tls": True,
        "ca_file": servers.authority.ca,
        "cert_file": servers.client.cert,
        "key_file": servers.client.key,
        "mechanism": "PLAIN",
        "user": USER,
        "password": PASSWORD,
    }
    return KafkaAccess(**(ways | changes))


def test_the_log_lets_in_only_who_proves_himself(servers: Secured, tmp_path: Path) -> None:
    """PLAIN and SCRAM with the password and a certificate; neither without."""
    for good in (access(servers), access(servers, mechanism="SCRAM-SHA-512")):
        assert admin_client(good).list_topics(timeout=30).brokers
        assert PASSWORD not in repr(good)
    stranger = Authority(tmp_path, "stranger")
    pair = stranger.issue("role")
    for bad in (
        access(servers, password="wrong"),
        access(servers, mechanism="SCRAM-SHA-512", password="wrong"),
        access(servers, cert_file=None, key_file=None),
        access(servers, cert_file=pair.cert, key_file=pair.key),
        access(servers, ca_file=stranger.ca),
        access(servers, tls=False),
    ):
        with pytest.raises(KafkaException):
            admin_client(bad).list_topics(timeout=4)


async def test_redis_lets_in_only_who_proves_himself(servers: Secured, front: TlsEnd) -> None:
    files = {
        "redis_tls_ca_file": servers.authority.ca,
        "redis_tls_cert_file": servers.client.cert,
        "redis_tls_key_file": servers.client.key,
    }
    url = SecretStr(servers.environment(front)["QIM_REDIS_URL"])
    client = connect(Settings(redis_url=url, **files))
    assert await client.ping()
    await client.aclose()
    for missing in ({"redis_tls_ca_file": None}, {"redis_tls_cert_file": None, "redis_tls_key_file": None}):
        client = connect(Settings(redis_url=url, **(files | missing)))
        with pytest.raises(Exception, match=r"certificate|CERTIFICATE|closed|reset|connecting"):
            async with translated("redis"):
                await client.ping()
        await client.aclose()


def test_messages_go_through_a_stack_of_secured_links(
    servers: Secured, front: TlsEnd, tmp_path: Path
) -> None:
    """Every role serves, a message and its history arrive, the trace is whole, Redis refused nothing, and
    nobody sees a secret or the message on the way."""
    environment = servers.environment(front)
    with StackProcess(tmp_path / "stack", "--web", "--metrics", env=environment) as stack:

        def qim(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "qim_streams.cli", *words, "--state-dir", str(stack.state_dir)],
                env=stack.environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        stack.wait_all_ready()
        assert stack.address().gateway_url.startswith("wss://")
        qim("group", "create", "team", "--user", "ann", "--member", "ben", "--member", "cid")
        sent = qim("send", "--user", "ann", "--group", "team", BODY)
        assert BODY in qim("history", "team", "--user", "ben")
        assert "team" in qim("sessions", "list", "--user", "cid")
        assert "MAILBOXED" in qim("trace", sent.split()[-1])
        context = ssl.create_default_context(cafile=str(servers.authority.ca))
        api = json.loads((stack.state_dir / "client.json").read_text())["admin_url"]
        with urllib.request.urlopen(f"{api}/readyz", context=context, timeout=30) as answer:
            assert json.load(answer)["ready"]
        ports = {role.name: role.ports for role in stack.status().roles}
        with pytest.raises(OSError, match=r"(?i)certificate|ssl|reset|remote"):
            urllib.request.urlopen(  # a web view shows tables: only to who has a certificate of ours
                f"https://127.0.0.1:{ports['mailbox']['web']}/ready", context=context, timeout=30
            )
        assert front.connections > 5
        secrets = {
            PASSWORD,
            environment["QIM_REDIS_URL"].split("@")[0].rpartition(":")[2],
            stack.client["jwt_secret"],
        }
        assert in_arguments(descendants(stack.pid), secrets) == []
        assert in_files(stack.state_dir / "log", {*secrets, BODY}) == []
    with redis.Redis.from_url(servers.redis.url, decode_responses=True) as client:
        assert client.acl_log() == []
