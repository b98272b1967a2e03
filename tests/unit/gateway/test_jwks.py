"""Keys that an issuer publishes: rotation, absence, nonsense, bounds; over real HTTPS. T-X4, P19."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from qim_streams.errors import ConfigError, ProtocolError, StoreUnavailable
from qim_streams.gateway import jwks
from qim_streams.gateway.jwks import JwksKeeper, KeyBook, check_url, read_document
from qim_streams.gateway.jwks_http import http_source
from qim_streams.gateway.tokens import TokenVerifier, UnknownKey
from qim_streams.roles.published_keys import TokenKeys, token_keys
from qim_streams.settings import Settings, load_settings
from qim_streams.tls import ServerFiles, client_context, server_context
from tests.support.certificates import Authority
from tests.support.waiting import eventually


class Issuer:
    """Signs tokens, publishes the keys in `published`, and counts who asks."""

    def __init__(self) -> None:
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self.published: list[str] = []
        self.asked, self.status, self.text = 0, 200, ""

    def key(self, kid: str) -> ec.EllipticCurvePrivateKey:
        """The key of this name, made at first use."""
        return self._keys.setdefault(kid, ec.generate_private_key(ec.SECP256R1()))

    def token(self, kid: str, signer: str = "") -> str:
        """A good token that names `kid`."""
        claims = {"tenant": "acme", "sub": "ben", "aud": "qim", "exp": int(time.time()) + 600}
        return jwt.encode(claims, self.key(signer or kid), algorithm="ES256", headers={"kid": kid})

    def document(self) -> str:
        """The JWKS document."""
        keys: list[Any] = []
        for kid in self.published:
            entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key(kid).public_key()))
            keys.append(entry | {"kid": kid, "alg": "ES256", "use": "sig"})
        return self.text or json.dumps({"keys": keys})

    async def source(self) -> bytes:
        """See `JwksKeeper`."""
        self.asked += 1
        if self.status != 200:
            raise OSError(f"answered {self.status}")
        return self.document().encode()

    async def answer(self, _: web.Request) -> web.Response:
        """The same over HTTP."""
        self.asked += 1
        return web.Response(status=self.status, text=self.document(), content_type="application/json")


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def issuer() -> Issuer:
    made = Issuer()
    made.published = ["one"]
    return made


@pytest.fixture
async def kept(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[TokenKeys, Clock]]:
    """A verifier whose keys are kept, asked for again only when a token says so."""
    monkeypatch.setattr(jwks, "AGAIN_S", 0.0)
    clock = Clock()
    book = KeyBook(600, clock)
    verifier = TokenVerifier({}, "qim", 30, book)
    keeper = JwksKeeper(book, issuer.source, 300)
    verifier.again = keeper.again
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: issuer.asked == 1)
    yield TokenKeys(verifier, book, keeper), clock
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_key_is_asked_for_and_an_old_one_goes(issuer: Issuer, kept: Any) -> None:
    """Rotation without a refusal: published, used, then the old one is withdrawn and refused."""
    verifier = kept[0].verifier
    assert (await verifier.admit(issuer.token("one"))).user_id == "ben"
    issuer.published = ["one", "two"]
    assert (await verifier.admit(issuer.token("two"))).user_id == "ben"
    assert issuer.asked == 2
    issuer.published = ["two"]
    with pytest.raises(UnknownKey):
        await verifier.admit(issuer.token("three"))
    with pytest.raises(ProtocolError, match=r"BAD_TOKEN|no key"):
        await verifier.admit(issuer.token("one"))
    with pytest.raises(ProtocolError):
        await verifier.admit(issuer.token("two", signer="one"))
    assert (await verifier.admit(issuer.token("two"))).user_id == "ben"


async def test_nonsense_changes_nothing_and_silence_closes(issuer: Issuer, kept: Any) -> None:
    """Keys outlive a broken issuer for so long, then tokens are refused for now, and no longer than that."""
    (keys, clock), good = kept, issuer.token("one")
    for text in ("", "[]", "{}", '{"keys": []}', "x" * (jwks.DOCUMENT_BYTES_MAX + 1), "[" * 10_000):
        issuer.text = text or "not json"
        with pytest.raises(UnknownKey):
            await keys.verifier.admit(issuer.token("other"))
        assert (await keys.verifier.admit(good)).user_id == "ben"
    issuer.text, issuer.status = "", 503
    clock.now_s += 601
    assert keys.book.reasons()
    with pytest.raises(StoreUnavailable):
        await keys.verifier.admit(good)
    issuer.status = 200
    await keys.keeper.again()
    assert (await keys.verifier.admit(good)).user_id == "ben"
    assert keys.book.reasons() == []


async def test_a_storm_of_unknown_keys_asks_once(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever invents key names neither loads the issuer nor waits."""
    book = KeyBook(600, time.monotonic)
    keeper = JwksKeeper(book, issuer.source, 300)
    verifier = TokenVerifier({}, "qim", 30, book)
    verifier.again = keeper.again
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: book.current() is not None)
    refused = await asyncio.gather(
        *(verifier.admit(issuer.token(f"k{n}", signer="k")) for n in range(200)), return_exceptions=True
    )
    assert all(isinstance(one, UnknownKey) for one in refused)
    assert issuer.asked == 2
    assert not await keeper.again()
    assert issuer.asked == 2
    running.cancel()


def test_documents_are_bounded(issuer: Issuer) -> None:
    issuer.published = [f"k{n}" for n in range(jwks.KEYS_MAX + 1)]
    with pytest.raises(ValueError, match="keys"):
        read_document(issuer.document())
    with pytest.raises(ValueError, match="bytes"):
        read_document("x" * (jwks.DOCUMENT_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "url", ["http://issuer.example/keys", "file:///etc/passwd", "https://u:p@issuer.example/", "keys"]
)
def test_addresses_that_prove_nothing_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="jwt_jwks_url"):
        check_url(url)


async def test_over_https_from_the_authority_that_is_named(issuer: Issuer, tmp_path: Path) -> None:
    """The issuer is checked; another authority's certificate, a redirect and a flood are failures."""
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b", "other")
    pair = authority.issue("issuer")
    app = web.Application()
    app.router.add_get("/keys", issuer.answer)
    app.router.add_get("/moved", lambda _: web.Response(status=302, headers={"Location": "/keys"}))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(
        runner, "127.0.0.1", 0, ssl_context=server_context(ServerFiles("x", pair.cert, pair.key))
    )
    await site.start()
    base = f"https://127.0.0.1:{runner.addresses[0][1]}"
    trust = client_context("x", authority.ca)
    assert read_document(await http_source(f"{base}/keys", trust)())["ES256"][0][0] == "one"
    with pytest.raises(OSError, match="302"):
        await http_source(f"{base}/moved", trust)()
    with pytest.raises(OSError, match="ConnectError"):
        await http_source(f"{base}/keys", client_context("x", stranger.ca))()
    issuer.text = "y" * (jwks.DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(OSError, match="bytes"):
        await http_source(f"{base}/keys", trust)()
    await runner.cleanup()


async def test_a_file_is_read_again(issuer: Issuer, tmp_path: Path) -> None:
    """A gateway whose keys are in a file takes what is written there while it runs."""
    path = tmp_path / "jwks.json"
    path.write_text(issuer.document())
    keys = token_keys(load_settings(jwt_jwks_file=path, tls_reload_s=0.05))
    assert keys.keeper is not None
    running = asyncio.create_task(keys.keeper.run())
    assert keys.book is not None
    await eventually(lambda: keys.book is not None and keys.book.current() is not None)
    issuer.published = ["two"]
    path.write_text(issuer.document())
    await eventually(lambda: _is_good(keys.verifier, issuer.token("two")))
    assert not _is_good(keys.verifier, issuer.token("one"))
    running.cancel()


def _is_good(verifier: TokenVerifier, token: str) -> bool:
    try:
        return verifier.verify(token).user_id == "ben"
    except ProtocolError:
        return False


def test_no_keys_at_all_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="QIM_JWT_JWKS_URL"):
        token_keys(Settings(jwt_secret=SecretStr("")))
