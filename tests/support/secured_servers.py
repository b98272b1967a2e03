"""Servers as a careful operator runs them: a log with TLS and SASL, a Redis with TLS and certificates.

The Redis that comes with the tests knows no TLS: a small front ends it, as a proxy beside the server would.
Where there is one that does (``apt-get install redis-server``, or QIM_TEST_REDIS_TLS names its program), that
one ends TLS itself.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Protocol

import redis
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.embedded.server import ServerCommand
from tests.support.certificates import Authority, Pair

USER, PASSWORD = "qim", "a-password-of-the-log"
_LOGIN = "org.apache.kafka.common.security"


class SecuredKafka(EmbeddedKafka):
    """Beside the plain listener of this machine one with TLS, client certificates and SASL."""

    def __init__(self, data_dir: Path, authority: Authority) -> None:
        super().__init__(data_dir, quick=True)
        (self.secure_port,) = free_ports(1)
        pair = authority.issue("broker")
        self._keystore = data_dir.parent / "broker.pem"
        self._keystore.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
        self._ca = authority.ca

    @property
    def secure(self) -> str:
        """host:port of the listener with TLS and SASL."""
        return f"127.0.0.1:{self.secure_port}"

    def allow(self) -> None:
        """Make the SCRAM user. The server runs."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(60)

    def _render(self) -> ServerCommand:
        command = super()._render()
        path = self.data_dir / "server.properties"
        lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
        lines["listeners"] += f",SECURE://{self.secure}"
        lines["advertised.listeners"] += f",SECURE://{self.secure}"
        lines |= {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            "listener.name.secure.scram-sha-512.sasl.jaas.config": (
                f"{_LOGIN}.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._ca),
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return command


class TlsEnd(Protocol):
    """Where TLS to a Redis ends: who connects shows a certificate of the authority."""

    @property
    def port(self) -> int:
        """Port of 127.0.0.1."""

    @property
    def connections(self) -> int:
        """How many there were so far."""


def redis_that_knows_tls() -> str | None:
    """The program of a Redis that was built with TLS; None: there is none here."""
    program = os.environ.get("QIM_TEST_REDIS_TLS") or shutil.which("redis-server")
    if program is None:
        return None
    # It stops at the first directive that it does not know: at the one about TLS, or behind it.
    config = "port 0\ntls-port 0\nno-such-directive\n"
    done = subprocess.run([program, "-"], input=config, capture_output=True, text=True, timeout=60)
    return program if "no-such-directive" in done.stdout + done.stderr else None


class TlsRedis(EmbeddedRedis):
    """A Redis that ends TLS itself, beside the plain port of this machine that operators use."""

    def __init__(self, data_dir: Path, program: str, pair: Pair, ca: Path) -> None:
        super().__init__(data_dir, program=program)
        self._pair, self._ca = pair, ca
        (self.tls_port,) = free_ports(1)

    def _config(self) -> str:
        more = {
            "tls-port": self.tls_port,
            "tls-cert-file": self._pair.cert,
            "tls-key-file": self._pair.key,
            "tls-ca-cert-file": self._ca,
            "tls-auth-clients": "yes",
        }
        return super()._config() + "".join(f"{name} {value}\n" for name, value in more.items())


class RedisEnd:
    """`TlsEnd` of a `TlsRedis`."""

    def __init__(self, server: TlsRedis) -> None:
        self._server = server

    @property
    def port(self) -> int:
        """The port with TLS."""
        return self._server.tls_port

    @property
    def connections(self) -> int:
        """Of both ports, one of which only the test uses."""
        with redis.Redis.from_url(self._server.url) as client:
            return int(client.info("stats")["total_connections_received"])


class TlsFront:
    """Ends TLS in front of a server of this machine; clients must show a certificate. A context manager."""

    def __init__(self, target_port: int, pair: Pair, ca: Path) -> None:
        self._target = target_port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
        self._context.load_cert_chain(pair.cert, pair.key)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = self.connections = 0

    def __enter__(self) -> "TlsFront":
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context), self._loop
        ).result(60)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
