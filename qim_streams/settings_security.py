"""Settings of security: keys, TLS of every link, access to log and stores, keys of the admin API, the door.

A secret may be given as a value or as the name of a file (``..._file``); `Settings` reads the files. A
certificate needs its key, a user its password: a half is refused at start-up, by name.

Spec: §7, §11, §14.9.
"""

from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_AUDIT_BYTES_MIN: Final = 64 * 1024  # some lines fit into any file
_HALVES: Final = (
    ("gateway_tls_cert_file", "gateway_tls_key_file"),
    ("api_tls_cert_file", "api_tls_key_file"),
    ("internal_tls_cert_file", "internal_tls_key_file"),
    ("redis_tls_cert_file", "redis_tls_key_file"),
    ("kafka_tls_cert_file", "kafka_tls_key_file"),
    ("cassandra_tls_cert_file", "cassandra_tls_key_file"),
)


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(
        default=default, description=description, json_schema_extra={"section": "security"}, **bounds
    )


def _pem(what: str) -> Any:
    return _setting(None, f"PEM file: {what}")


class SecuritySettings(BaseSettings):
    """Fields of `Settings`; not used by itself."""

    internal_secret: SecretStr = _setting(
        SecretStr(""), "shared by gateways, writers and API; at least 32 characters"
    )
    jwt_secret: SecretStr = _setting(SecretStr(""), "HS256 key of access tokens; at least 32 characters")
    jwt_secret_previous: SecretStr = _setting(
        SecretStr(""), "another HS256 key that is accepted: the former, or the next one"
    )
    jwt_jwks_file: Path | None = _setting(None, "JWKS file for RS256/ES256 tokens; read when it changes")
    jwt_jwks_url: str = _setting("", "https address of the issuer's JWKS for RS256/ES256 access tokens")
    jwt_jwks_ca_file: Path | None = _pem(
        "authorities that this address is checked against; unset = the system's"
    )
    jwt_jwks_refresh_s: float = _setting(300.0, "how often keys are asked for again", ge=1, le=86_400)
    jwt_jwks_stale_max_s: float = _setting(
        86_400.0, "keys that could not be asked for again for so long are accepted no more", ge=60
    )
    jwt_audience: str = _setting("qim", "required aud claim")
    jwt_leeway_s: int = _setting(30, "clock leeway for exp and nbf, seconds", ge=0, le=300)
    cursor_secret: SecretStr = _setting(SecretStr(""), "HMAC key of cursors; at least 32 characters")
    cursor_secret_previous: SecretStr = _setting(
        SecretStr(""), "another cursor key that is accepted: the former, or the next one"
    )
    admin_api_key: SecretStr = _setting(
        SecretStr(""), "key of the HTTP admin API, role admin; at least 32 characters"
    )
    admin_keys_file: Path | None = _setting(
        None, "file of further keys of the admin API: a name, a role and the key's SHA-256 per line"
    )
    audit_file: Path | None = _setting(
        None, "file that admin actions are appended to; default <state_dir>/audit.jsonl"
    )
    audit_bytes_max: int = _setting(
        64 * 1024 * 1024,
        "size at which the audit log is continued in a new file; 0 = it grows for ever",
        ge=0,
    )
    audit_files_max: int = _setting(
        10, "older files of the audit log that are kept; the oldest is dropped", ge=1, le=10_000
    )
    internal_secret_file: Path | None = _setting(None, "file with internal_secret")
    jwt_secret_file: Path | None = _setting(None, "file with jwt_secret")
    jwt_secret_previous_file: Path | None = _setting(None, "file with jwt_secret_previous")
    cursor_secret_file: Path | None = _setting(None, "file with cursor_secret")
    cursor_secret_previous_file: Path | None = _setting(None, "file with cursor_secret_previous")
    admin_api_key_file: Path | None = _setting(None, "file with admin_api_key")

    # -- TLS of what listens
    gateway_tls_cert_file: Path | None = _pem("certificate chain of client sockets; unset = no TLS")
    gateway_tls_key_file: Path | None = _pem("its key")
    api_tls_cert_file: Path | None = _pem("certificate chain of the HTTP admin API; unset = no TLS")
    api_tls_key_file: Path | None = _pem("its key")
    internal_tls_cert_file: Path | None = _pem(
        "this process's certificate for links between roles and for web views; unset = no TLS there"
    )
    internal_tls_key_file: Path | None = _pem("its key")
    internal_tls_ca_file: Path | None = _pem(
        "authorities that both ends of an internal link are checked against"
    )
    internal_tls_name: str = _setting(
        "", "name that certificates of internal links bear; empty = the host that is connected to"
    )
    tls_reload_s: float = _setting(10.0, "how often certificate files are looked at", ge=0.05, le=3_600)

    # -- log and stores
    redis_tls_ca_file: Path | None = _pem(
        "authorities of Redis (redis_url with rediss://); unset = the system's"
    )
    redis_tls_cert_file: Path | None = _pem("certificate that Redis asks for")
    redis_tls_key_file: Path | None = _pem("its key")
    kafka_tls: bool = _setting(False, "speak TLS to the log")
    kafka_tls_ca_file: Path | None = _pem("authorities of the log's brokers; unset = the system's")
    kafka_tls_cert_file: Path | None = _pem("certificate that brokers ask for")
    kafka_tls_key_file: Path | None = _pem("its key")
    kafka_sasl_mechanism: str = _setting(
        "", f"SASL to the log: {', '.join(MECHANISMS)}; empty = none", pattern=f"^({'|'.join(MECHANISMS)})?$"
    )
    kafka_sasl_user: str = _setting("", "user of SASL")
    kafka_sasl_password: SecretStr = _setting(SecretStr(""), "its password")
    kafka_sasl_password_file: Path | None = _setting(None, "file with kafka_sasl_password")
    cassandra_tls_cert_file: Path | None = _pem("certificate that the archive's cluster asks for")
    cassandra_tls_key_file: Path | None = _pem("its key")

    # -- the door
    door_handshakes_per_s: float = _setting(
        200.0, "connections a second from one address to a gateway; 0 = no bound", ge=0, le=1_000_000
    )
    door_handshakes_burst: int = _setting(5_000, "of that rate, what may come at once", ge=1, le=1_000_000)
    door_strangers_max: int = _setting(
        2_000, "connections from one address that have not signed on yet; 0 = no bound", ge=0, le=1_000_000
    )

    door_trusted: str = _setting(
        "127.0.0.0/8,::1/128", "networks whose connections are not counted: balancers; comma separated"
    )

    @model_validator(mode="after")
    def _halves_are_whole(self) -> Self:
        for cert, key in _HALVES:
            if (getattr(self, cert) is None) != (getattr(self, key) is None):
                raise ValueError(f"{cert}: goes together with {key}; set both, or none")
        if 0 < self.audit_bytes_max < _AUDIT_BYTES_MIN:
            raise ValueError(f"audit_bytes_max: must be 0 or {_AUDIT_BYTES_MIN} or more; raise it")
        if self.internal_tls_cert_file is not None and self.internal_tls_ca_file is None:
            raise ValueError("internal_tls_ca_file: needed beside internal_tls_cert_file; set it")
        if self.jwt_jwks_url and self.jwt_jwks_file is not None:
            raise ValueError("jwt_jwks_url: is set beside jwt_jwks_file; unset one of them")
        if self.jwt_jwks_stale_max_s < 2 * self.jwt_jwks_refresh_s:
            raise ValueError("jwt_jwks_stale_max_s: must be twice jwt_jwks_refresh_s or more; raise it")
        if self.cassandra_tls_cert_file is not None and getattr(self, "cassandra_tls_ca_file", None) is None:
            raise ValueError("cassandra_tls_cert_file: is shown under TLS; set cassandra_tls_ca_file")
        if self.kafka_sasl_mechanism and not (
            self.kafka_sasl_user and (self.kafka_sasl_password.get_secret_value())
        ):
            raise ValueError(
                "kafka_sasl_mechanism: needs kafka_sasl_user and kafka_sasl_password or its _file"
            )
        return self
