"""The verifier of access tokens of a gateway, and the keeper of keys that an issuer publishes.

Spec: §7.
"""

import time
from typing import NamedTuple

from qim_streams.gateway.jwks import JwksKeeper, KeyBook, check_url, file_source
from qim_streams.gateway.tokens import TokenVerifier
from qim_streams.settings import Settings


class TokenKeys(NamedTuple):
    """`book` and `keeper` are None where no JWKS document is named; `keeper.run` never ends."""

    verifier: TokenVerifier
    book: KeyBook | None = None
    keeper: JwksKeeper | None = None


def token_keys(settings: Settings) -> TokenKeys:
    """ConfigError for settings that lead to no keys."""
    url, path = settings.jwt_jwks_url, settings.jwt_jwks_file
    if not url and path is None:
        return TokenKeys(TokenVerifier.from_settings(settings))
    book = KeyBook(settings.jwt_jwks_stale_max_s, time.monotonic)
    verifier = TokenVerifier.from_settings(settings, book)
    if url:
        # Only here: who has no issuer to ask does not load what asks.
        from qim_streams.gateway.jwks_http import http_source
        from qim_streams.tls import client_context

        check_url(url)
        source = http_source(url, client_context("jwt_jwks_ca_file", settings.jwt_jwks_ca_file))
        keeper = JwksKeeper(book, source, settings.jwt_jwks_refresh_s)
    else:
        assert path is not None
        keeper = JwksKeeper(book, file_source(path), settings.tls_reload_s)
    verifier.again = keeper.again
    return TokenKeys(verifier, book, keeper)
