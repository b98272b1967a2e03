"""Credentials of providers: files read once, tokens signed and kept until they grow old.

Nothing here is logged or shown: errors name the setting and the file, never what is in it.

Spec: §6.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from qim_streams.errors import ConfigError

FILE_BYTES_MAX: Final = 64 * 1024
APNS_TOKEN_AGE_S: Final = 50 * 60  # APNs takes them for an hour
APNS_TOKEN_YOUNG_S: Final = 20 * 60  # and does not like them renewed more often
FCM_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_AGE_S: Final = 3_600


def read_file(setting: str, path: Path | None) -> str:
    """The text of a credentials file; ConfigError names the setting."""
    if path is None:
        raise ConfigError(f"{setting} is not set: export QIM_{setting.upper()}")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: {path}: {type(error).__name__}; give a readable text file") from None
    if len(data) > FILE_BYTES_MAX or not text.strip():
        raise ConfigError(f"{setting}: {path}: empty or over {FILE_BYTES_MAX} bytes")
    return text


class ApnsTokens:
    """Provider tokens of APNs: ES256, renewed well before an hour has passed. `now_s`: wall clock."""

    def __init__(self, key: str, key_id: str, team_id: str, now_s: Callable[[], float]) -> None:
        self._key, self._key_id, self._team_id, self._now_s = key, key_id, team_id, now_s
        self._token, self._made_at = "", float("-inf")
        self.current()  # a key that cannot sign is found at the start

    def current(self) -> str:
        """The token to use now."""
        if self._now_s() - self._made_at >= APNS_TOKEN_AGE_S:
            self._make()
        return self._token

    def renew(self) -> bool:
        """APNs called the token expired: make another, unless this one is young (then the clocks differ)."""
        if self._now_s() - self._made_at < APNS_TOKEN_YOUNG_S:
            return False
        self._make()
        return True

    def _make(self) -> None:
        now = self._now_s()
        claims = {"iss": self._team_id, "iat": int(now)}
        try:
            self._token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise ConfigError(
                f"apns_key_file: no ES256 private key in PEM ({type(error).__name__})"
            ) from None
        self._made_at = now


class ServiceAccount(NamedTuple):
    """What is needed of a Google service account."""

    project_id: str
    client_email: str
    private_key: str
    private_key_id: str
    token_uri: str

    def __repr__(self) -> str:
        return f"ServiceAccount({self.project_id})"

    def assertion(self, now_s: float) -> str:
        """A signed JWT to be exchanged for an access token (RFC 7523); ConfigError for a bad key."""
        now = int(now_s)
        claims = {
            "iss": self.client_email,
            "scope": FCM_SCOPE,
            "aud": self.token_uri,
            "iat": now,
            "exp": now + ASSERTION_AGE_S,
        }
        try:
            headers = {"kid": self.private_key_id}
            return jwt.encode(claims, self.private_key, algorithm="RS256", headers=headers)
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise ConfigError(f"fcm_credentials_file: no RSA private key ({type(error).__name__})") from None


def service_account(text: str) -> ServiceAccount:
    """The account of a credentials file; ConfigError names the field that is missing."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise ConfigError("fcm_credentials_file: not JSON") from None
    values = []
    for name in ServiceAccount._fields:
        value = found.get(name) if isinstance(found, dict) else None
        if not isinstance(value, str) or not value:
            raise ConfigError(f"fcm_credentials_file: no {name} in it; give the file of a service account")
        values.append(value)
    return ServiceAccount(*values)
