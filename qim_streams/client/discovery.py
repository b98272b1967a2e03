"""Finding a running stack: where its gateway is, and the secret that mints tokens for its users.

A stack started on this machine leaves ``client.json`` in its state directory while it runs. What the
caller gives (options, then ``QIM_*`` variables) wins over the file, field by field.

Invariants: secrets are never shown (`repr` leaves them out); every error names the remedy.
"""

import json
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qim_streams.errors import ConfigError
from qim_streams.gateway.tokens import mint_token

CLIENT_FILE = "client.json"
FILE_BYTES_MAX = 65_536
AUDIENCE = "qim"
TTL_DEFAULT_S = 12 * 3_600
STATE_DIRS = (Path(".qim/up"), Path(".qim/demo"))  # looked through in this order


@dataclass(frozen=True, slots=True)
class StackAddress:
    """How to reach a stack. An empty field is unknown. `home`: the state directory it was found in."""

    gateway_url: str = ""
    tenant: str = ""
    jwt_secret: str = field(default="", repr=False)
    admin_url: str = ""
    admin_api_key: str = field(default="", repr=False)
    home: str = ""

    def require_url(self) -> str:
        """The gateway's URL; ConfigError when it is unknown."""
        if not self.gateway_url:
            raise ConfigError("no running stack found: start one with `qim up`, or give --url")
        return self.gateway_url

    def token(self, user_id: str, ttl_s: int = TTL_DEFAULT_S) -> str:
        """An access token for a user, minted with the stack's secret."""
        if not self.jwt_secret:
            raise ConfigError("the stack's JWT secret is unknown: give --token or set QIM_JWT_SECRET")
        secret, tenant = self.jwt_secret.encode(), self.require_tenant()
        try:
            return mint_token(secret, AUDIENCE, tenant, user_id, ttl_s, int(time.time()))[0]
        except ValueError as error:
            raise ConfigError(f"user {user_id!r} in tenant {tenant!r}: {error}") from None

    def require_tenant(self) -> str:
        """The tenant; ConfigError when it is unknown."""
        if not self.tenant:
            raise ConfigError("the tenant is unknown: give --tenant or set QIM_TENANT")
        return self.tenant


def discover(state_dir: Path | None, **given: str | None) -> StackAddress:
    """The address of a stack: fields that are given, the rest from ``client.json``.

    With `state_dir` None the usual directories are looked through. ConfigError when `state_dir` is given
    and holds no running stack and no URL is given, or when the file is not understood.
    """
    known = {name: value for name, value in given.items() if value}
    for directory in (state_dir,) if state_dir is not None else STATE_DIRS:
        path = directory / CLIENT_FILE
        if path.exists():
            return replace(_read(path), home=str(directory), **known)
    if state_dir is not None and "gateway_url" not in known:
        raise ConfigError(f"no stack runs in {state_dir}: start one with `qim up --state-dir {state_dir}`")
    return StackAddress(**known)


def _read(path: Path) -> StackAddress:
    try:
        content: Any = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); start the stack again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not a JSON object; start the stack again")
    values: dict[str, str] = {}
    for one in fields(StackAddress):
        value = content.get(one.name, "")
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {one.name} is not a text; start the stack again")
        values[one.name] = value
    return StackAddress(**values)
