"""Access tokens: JWTs that name a tenant and a user.

Accepted: HS256 with the current or the previous secret, or RS256/ES256 with a key of a JWKS file. The
algorithm of a token only selects among keys that were configured for it, so a public key can never be
used as an HMAC secret and ``none`` selects nothing. Tokens minted here name their secret (`key_id`), so
that with two secrets one signature is computed, and none for a secret that was removed. An issuer that
shares a secret with us may name it as it likes, or not at all: then each is tried.

Required claims: ``tenant``, ``sub``, ``exp``, ``aud``; ``nbf`` is honoured.

Invariants: any text gives `Claims` or `ProtocolError` (BAD_TOKEN, TOKEN_EXPIRED); a token is never part
of an error text or a log line.

Spec: §7.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from qim_streams import limits
from qim_streams.errors import ConfigError, ProtocolError
from qim_streams.ids import is_text_id
from qim_streams.settings import Settings

HMAC: Final = "HS256"
SIGNED: Final = ("RS256", "ES256")
_KEY_TYPES: Final = {"RS256": "RSA", "ES256": "EC"}
_KEY_ID_PREFIX: Final = "qim."
_KEY_ID_DOMAIN: Final = b"qim.token-key.v1\0"
_REQUIRED: Final = ["tenant", "sub", "exp", "aud"]


class Claims(NamedTuple):
    """Who a token stands for, and until when (seconds since the epoch)."""

    tenant_id: str
    user_id: str
    expires_at: int


class TokenVerifier:
    """Verifies tokens against fixed keys. `keys` maps an algorithm to [(key id or None, key)]."""

    def __init__(self, keys: dict[str, list[tuple[str | None, Any]]], audience: str, leeway_s: int) -> None:
        self._keys, self._audience, self._leeway_s = keys, audience, leeway_s

    @classmethod
    def from_settings(cls, settings: Settings) -> "TokenVerifier":
        """ConfigError when neither a secret nor a JWKS file is set, or the file is unusable."""
        secrets = (settings.jwt_secret.get_secret_value(), settings.jwt_secret_previous.get_secret_value())
        keys: dict[str, list[tuple[str | None, Any]]] = {
            HMAC: [(key_id(one.encode()), one.encode()) for one in secrets if one]
        }
        if settings.jwt_jwks_file is not None:
            keys |= _read_jwks(settings.jwt_jwks_file)
        if not any(keys.values()):
            raise ConfigError("jwt_secret is not set: export QIM_JWT_SECRET or QIM_JWT_JWKS_FILE")
        return cls(keys, settings.jwt_audience, settings.jwt_leeway_s)

    def verify(self, token: str) -> Claims:
        """The claims of a good token; ProtocolError BAD_TOKEN or TOKEN_EXPIRED."""
        if len(token) > limits.ACCESS_TOKEN_MAX:
            raise _bad("too long")
        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))
            for key in self._candidates(algorithm, header.get("kid")):
                try:
                    return self._claims(token, key, algorithm)
                except jwt.InvalidSignatureError:
                    continue
        except jwt.ExpiredSignatureError:
            raise ProtocolError("TOKEN_EXPIRED", "the access token has expired") from None
        except jwt.PyJWTError as error:
            raise _bad(type(error).__name__) from None
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            # The library's own parsing of a header or of claims of a strange type.
            raise _bad(type(error).__name__) from None
        raise _bad("no key of ours has signed it")

    def _candidates(self, algorithm: str, named: object) -> list[Any]:
        known = self._keys.get(algorithm, [])
        exact = [key for name, key in known if name is not None and name == named]
        if exact or (isinstance(named, str) and named.startswith(_KEY_ID_PREFIX)):
            return exact
        return [key for name, key in known if name is None or named is None or algorithm == HMAC]

    def _claims(self, token: str, key: Any, algorithm: str) -> Claims:
        payload = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self._audience,
            leeway=self._leeway_s,
            options={"require": _REQUIRED, "strict_aud": False},
        )
        tenant_id, user_id = payload["tenant"], payload["sub"]
        if not is_text_id(tenant_id) or not is_text_id(user_id):
            raise _bad("tenant or sub is not an id")
        return Claims(tenant_id, user_id, int(payload["exp"]))


def key_id(secret: bytes) -> str:
    """The name of an HS256 secret in the ``kid`` of tokens; tells nothing about the secret."""
    return _KEY_ID_PREFIX + hashlib.sha256(_KEY_ID_DOMAIN + secret).hexdigest()[:12]


def mint_token(
    secret: bytes, audience: str, tenant_id: str, user_id: str, ttl_s: int, now_s: int
) -> tuple[str, int]:
    """An HS256 token for a user, and when it expires (seconds since the epoch).

    For demonstrations and for the admin API: in production tokens come from an identity provider.
    ValueError for an id that is none or a lifetime out of 1 second to `limits.TOKEN_TTL_MAX_S`.
    """
    if not is_text_id(tenant_id) or not is_text_id(user_id):
        raise ValueError("tenant or user is not an id")
    if not 1 <= ttl_s <= limits.TOKEN_TTL_MAX_S:
        raise ValueError(f"ttl: {ttl_s} s is not between 1 and {limits.TOKEN_TTL_MAX_S}")
    expires_at = now_s + ttl_s
    claims = {"tenant": tenant_id, "sub": user_id, "aud": audience, "iat": now_s, "exp": expires_at}
    return jwt.encode(claims, secret, algorithm=HMAC, headers={"kid": key_id(secret)}), expires_at


def _bad(why: str) -> ProtocolError:
    return ProtocolError("BAD_TOKEN", f"the access token is not acceptable ({why})", field="access_token")


def _read_jwks(path: Path) -> dict[str, list[tuple[str | None, Any]]]:
    """The RS256 and ES256 keys of a JWKS file; others are left out."""
    try:
        entries = jwt.PyJWKSet.from_dict(json.loads(path.read_text())).keys
    except (OSError, ValueError, AttributeError, jwt.PyJWTError) as error:
        raise ConfigError(f"jwt_jwks_file: {path}: {type(error).__name__}; give a JWKS document") from None
    keys: dict[str, list[tuple[str | None, Any]]] = {name: [] for name in SIGNED}
    for entry in entries:
        if entry.algorithm_name in SIGNED and entry.key_type == _KEY_TYPES[entry.algorithm_name]:
            keys[entry.algorithm_name].append((entry.key_id, entry.key))
    if not any(keys.values()):
        raise ConfigError(f"jwt_jwks_file: {path} has no RS256 or ES256 key; add one")
    return keys
