"""The endpoints of applications: a YAML file, checked whole before anything starts.

    endpoints:
      - name: crm                       # of the process and the consumer group; never changes
        tenant: acme
        url: https://hooks.example.com/qim
        secret_file: /run/secrets/crm   # at least 32 characters; signs every request
        events: [message.committed, membership.changed, presence.changed, push.result]
    before_send:
      - tenant: acme
        url: https://moderation.example.com/check
        secret_file: /run/secrets/moderation
        deadline_ms: 300
        on_failure: allow               # or refuse

Invariants: a secret is read from a file and never shown; plain HTTP is only for loopback, unless the entry
says ``allow_plain: true``; credentials in a URL are refused, since URLs are logged.

Spec: §1 (integration).
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from qim_streams.errors import ConfigError
from qim_streams.ids import is_text_id
from qim_streams.settings import SECRET_BYTES_MIN, read_secret

EventName = Literal["message.committed", "membership.changed", "presence.changed", "push.result"]
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
FILE_BYTES_MAX = 1_000_000
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class Target(BaseModel):
    """Where requests of a tenant go, and what signs them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: str
    url: str
    secret_file: Path
    allow_plain: bool = False
    secret: SecretStr = Field(default=SecretStr(""), exclude=True)

    @field_validator("tenant")
    @classmethod
    def _is_id(cls, value: str) -> str:
        if not is_text_id(value):
            raise ValueError("is not an id")
        return value

    @field_validator("secret")
    @classmethod
    def _from_file_only(cls, value: SecretStr) -> SecretStr:
        raise ValueError("name a file (secret_file), not the secret")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError(f"url: {self.url!r} is not an http(s) address")
        if parts.username or parts.password:
            raise ValueError("url: holds credentials; requests are signed, name none")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS and not self.allow_plain:
            raise ValueError("url: plain http beyond this machine; use https, or allow_plain: true")
        text = read_secret("secret", self.secret_file)
        if len(text) < SECRET_BYTES_MIN:
            raise ValueError(f"secret_file: has {len(text)} characters, needs {SECRET_BYTES_MIN}")
        object.__setattr__(self, "secret", SecretStr(text))
        return self


class Endpoint(Target):
    """An endpoint that is told events. Bounds: see the fields."""

    name: Name
    events: tuple[EventName, ...] = ("message.committed",)
    batch_max: int = Field(default=100, ge=1, le=500)  # events in one request
    parallel: int = Field(default=4, ge=1, le=32)  # requests at once per partition, other conversations each
    timeout_ms: int = Field(default=10_000, ge=100, le=60_000)
    retry_for_s: int = Field(default=86_400, ge=0, le=6 * 86_400)  # then dead letter; the log keeps 7 days


class BeforeSend(Target):
    """An endpoint that is asked before a message of its tenant is committed."""

    deadline_ms: int = Field(default=300, ge=10, le=5_000)
    on_failure: Literal["allow", "refuse"] = "allow"
    parallel: int = Field(
        default=256, ge=1, le=4_096
    )  # questions at once per gateway; more count as failures


class WebhookFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoints: tuple[Endpoint, ...] = ()
    before_send: tuple[BeforeSend, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [one.name for one in self.endpoints]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"endpoints: {', '.join(sorted(twice))} stands there twice")
        tenants = [one.tenant for one in self.before_send]
        if twice := {tenant for tenant in tenants if tenants.count(tenant) > 1}:
            raise ValueError(f"before_send: {', '.join(sorted(twice))} has two")
        return self

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name; ConfigError when there is none."""
        for one in self.endpoints:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.endpoints) or "none"
        raise ConfigError(f"webhook {name!r} is not in the file of webhooks; there are: {known}")


def load_webhooks(path: Path | None) -> WebhookFile:
    """The file, checked; none: no webhooks. ConfigError names file, entry, field and reason."""
    if path is None:
        return WebhookFile()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"webhooks_file: {path}: {type(error).__name__}; give a readable YAML file"
        ) from error
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"webhooks_file: {path}: over {FILE_BYTES_MAX} bytes")
    try:
        return WebhookFile.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        raise ConfigError(f"webhooks_file: {path}: not YAML: {error}") from error
    except ValidationError as error:
        lines = (
            f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise ConfigError(f"webhooks_file: {path}: {'; '.join(lines)}") from None
