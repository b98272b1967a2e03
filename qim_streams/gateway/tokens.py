"""Access tokens: JWTs that name a tenant and a user.

Accepted: HS256 with the current or the previous secret, or RS256/ES256 with a key of a JWKS document, which
is a file or published by an issuer (`jwks`). The
algorithm of a token only selects among keys that were configured for it, so a public key can never be
used as an HMAC secret and ``none`` selects nothing. Tokens minted here name their secret (`key_id`), so
that with two secrets one signature is computed, and none for a secret that was removed. An issuer that
shares a secret with us may name it as it likes, or not at all: then each is tried.

Required claims: ``tenant``, ``sub``, ``exp``, ``aud``; ``nbf`` is honoured.

Invariants: any text gives `Claims` or `ProtocolError` (BAD_TOKEN, TOKEN_EXPIRED); no text but the one that
was signed is accepted, not even another spelling of its signature; a token is never part of an error text or
a log line.

Spec: §7.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import jwt

from qim_streams import limits
from qim_streams.errors import POLICY, ConfigError, Policy, ProtocolError, StoreUnavailable
from qim_streams.gateway.jwks import SIGNED, KeyBook, Keys, read_document
from qim_streams.ids import is_text_id
from qim_streams.settings import Settings
from qim_streams.wire.kinds import Malformed, from_base64url, to_base64url

HMAC: Final = "HS256"
_KEY_ID_PREFIX: Final = "qim."
_KEY_ID_DOMAIN: Final = b"qim.token-key.v1\0"
_REQUIRED: Final = ["tenant", "sub", "exp", "aud"]


class Claims(NamedTuple):
    """Who a token stands for, and until when (seconds since the epoch)."""

    tenant_id: str
    user_id: str
    expires_at: int


class UnknownKey(ProtocolError):
    """A token names a key that we do not have, or not yet."""


POLICY[UnknownKey] = Policy.DEAD_LETTER


class TokenVerifier:
    """Verifies tokens against fixed keys, and those of a book. `again` asks the issuer for newer ones."""

    def __init__(self, keys: Keys, audience: str, leeway_s: int, book: KeyBook | None = None) -> None:
        self._keys, self._audience, self._leeway_s = keys, audience, leeway_s
        self._book = book
        self.again: Callable[[], Awaitable[bool]] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, book: KeyBook | None = None) -> "TokenVerifier":
        """ConfigError when neither a secret nor a JWKS document is named, or the file is unusable."""
        secrets = (settings.jwt_secret.get_secret_value(), settings.jwt_secret_previous.get_secret_value())
        keys: Keys = {HMAC: [(key_id(one.encode()), one.encode()) for one in secrets if one]}
        if settings.jwt_jwks_file is not None:
            path = settings.jwt_jwks_file
            try:
                published = read_document(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigError(f"jwt_jwks_file: {path}: {error}; give a JWKS document") from None
            keys |= {} if book is not None else published
        elif not any(keys.values()) and not settings.jwt_jwks_url:
            raise ConfigError(
                "jwt_secret is not set: export QIM_JWT_SECRET, QIM_JWT_JWKS_FILE or QIM_JWT_JWKS_URL"
            )
        return cls(keys, settings.jwt_audience, settings.jwt_leeway_s, book)

    async def admit(self, token: str) -> Claims:
        """`verify`, but a key that is not known is asked for first, if it was not just asked for."""
        try:
            return self.verify(token)
        except UnknownKey:
            if self.again is None or not await self.again():
                raise
            return self.verify(token)

    def verify(self, token: str) -> Claims:
        """The claims of a good token; ProtocolError BAD_TOKEN or TOKEN_EXPIRED.

        StoreUnavailable when it is signed with a published key and those are not known now.
        """
        if len(token) > limits.ACCESS_TOKEN_MAX:
            raise _bad("too long")
        if not _is_canonical(token):
            raise _bad("DecodeError")
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
        raise UnknownKey("BAD_TOKEN", "no key of ours has signed the access token", field="access_token")

    def _candidates(self, algorithm: str, named: object) -> list[Any]:
        known = self._keys.get(algorithm, [])
        if self._book is not None and algorithm in SIGNED:
            published = self._book.current()
            if published is None:
                raise StoreUnavailable("the issuer's keys of access tokens are not known now")
            known = known + published.get(algorithm, [])
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


def _is_canonical(token: str) -> bool:
    """Whether a token's signature, the one part that nothing signs, is spelt as base64url spells it.

    Decoders pass over unknown characters and the last digit's spare bits: one signature would have many
    spellings, and a list of tokens that were taken back could be walked around.
    """
    signature = token.rpartition(".")[2]
    try:
        return to_base64url(from_base64url(signature)) == signature
    except Malformed:
        return False


def _bad(why: str) -> ProtocolError:
    return ProtocolError("BAD_TOKEN", f"the access token is not acceptable ({why})", field="access_token")
