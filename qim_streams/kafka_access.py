"""How the log is reached: brokers, TLS and SASL, in the words of the two drivers and of Faust.

One value, made of the settings, goes to everything that speaks to the log; where a plain string stands
instead, it names brokers that are spoken to in the clear. The password is in no text of this value.

Spec: §14.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qim_streams.tls import client_context


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """`servers`: host:port, comma separated. `mechanism` empty: no SASL. `str()` gives the servers."""

    servers: str
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    requests_in_flight: int = 1  # of one producer at one broker

    def __str__(self) -> str:
        return self.servers

    @property
    def protocol(self) -> str:
        """``security.protocol``."""
        kind = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{kind}" if self.mechanism else kind

    def librdkafka(self) -> dict[str, Any]:
        """Options of confluent-kafka clients, ``bootstrap.servers`` among them."""
        options: dict[str, Any] = {"bootstrap.servers": self.servers}
        if self.protocol == "PLAINTEXT":
            return options
        options["security.protocol"] = self.protocol
        if self.tls:
            options["ssl.endpoint.identification.algorithm"] = "https"
            files = {
                "ssl.ca.location": self.ca_file,
                "ssl.certificate.location": self.cert_file,
                "ssl.key.location": self.key_file,
            }
            options |= {name: str(path) for name, path in files.items() if path is not None}
        if self.mechanism:
            options |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return options

    def aiokafka(self) -> dict[str, Any]:
        """Arguments of aiokafka clients, `bootstrap_servers` among them; ConfigError for useless files."""
        given: dict[str, Any] = {"bootstrap_servers": self.servers, "security_protocol": self.protocol}
        if self.tls:
            given["ssl_context"] = self.context()
        if self.mechanism:
            given |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        return given

    def context(self) -> Any:
        """The TLS context of a client of the log."""
        return client_context("kafka_tls_ca_file", self.ca_file, self.cert_file, self.key_file)


Brokers = str | KafkaAccess


def access_of(brokers: Brokers) -> KafkaAccess:
    """How `brokers` are reached."""
    return brokers if isinstance(brokers, KafkaAccess) else KafkaAccess(brokers)
