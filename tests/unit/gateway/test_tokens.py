"""Tokens: keys of both kinds, rotation, algorithm confusion, any bytes (T-X4, T-F1, P19)."""

import json
import random
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from qim_streams import limits
from qim_streams.errors import ConfigError, ProtocolError
from qim_streams.gateway.tokens import TokenVerifier, key_id, mint_token
from qim_streams.settings import Settings

SECRET, OLD = "s" * 40, "o" * 40
VERIFIER = TokenVerifier.from_settings(
    Settings(jwt_secret=SecretStr(SECRET), jwt_secret_previous=SecretStr(OLD), jwt_leeway_s=30)
)


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims."""
    return {"tenant": "acme", "sub": "ben", "aud": "qim", "exp": int(time.time()) + 600} | changes


def refused(verifier: TokenVerifier, token: str) -> str:
    """The code of the refusal."""
    with pytest.raises(ProtocolError) as caught:
        verifier.verify(token)
    assert len(token) < 40 or token[:40] not in str(caught.value)
    return caught.value.code


def test_minted_tokens_are_good_and_keys_rotate() -> None:
    """The current and the previous secret are accepted; a lifetime and ids are checked."""
    now = int(time.time())
    token, expires = mint_token(SECRET.encode(), "qim", "acme", "ben", 60, now)
    assert VERIFIER.verify(token) == ("acme", "ben", now + 60)
    assert expires == now + 60
    assert VERIFIER.verify(mint_token(OLD.encode(), "qim", "acme", "ann", 60, now)[0]).user_id == "ann"
    for ttl, user in ((0, "ben"), (limits.TOKEN_TTL_MAX_S + 1, "ben"), (60, "b n")):
        with pytest.raises(ValueError, match=r"ttl|id"):
            mint_token(SECRET.encode(), "qim", "acme", user, ttl, now)


def test_rotation_step_by_step() -> None:
    """P19: the next secret is accepted first, then used, then alone; at no step is a good token refused."""
    now = int(time.time())
    old = mint_token(OLD.encode(), "qim", "acme", "ben", 60, now)[0]
    new = mint_token(SECRET.encode(), "qim", "acme", "ben", 60, now)[0]
    steps = [
        ((OLD, ""), {old}),
        ((OLD, SECRET), {old, new}),
        ((SECRET, OLD), {old, new}),
        ((SECRET, ""), {new}),
    ]
    for (current, other), good in steps:
        settings = Settings(jwt_secret=SecretStr(current), jwt_secret_previous=SecretStr(other))
        verifier = TokenVerifier.from_settings(settings)
        for token in (old, new):
            if token in good:
                assert verifier.verify(token).user_id == "ben"
            else:
                assert refused(verifier, token) == "BAD_TOKEN"


def test_a_named_secret_is_the_only_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our key ids: one signature at most, none for a removed secret; other names: each secret is tried."""
    tried: list[bytes] = []
    decode = jwt.decode

    def count(token: str, key: bytes, **options: Any) -> Any:
        tried.append(key)
        return decode(token, key, **options)

    monkeypatch.setattr(jwt, "decode", count)
    for secret, kid, keys in (
        (OLD, key_id(OLD.encode()), [OLD]),
        ("r" * 40, key_id(b"r" * 40), []),
        (OLD, key_id(SECRET.encode()), [SECRET]),
        (OLD, "issuer-7", [SECRET, OLD]),
        (OLD, None, [SECRET, OLD]),
    ):
        tried.clear()
        headers = {} if kid is None else {"kid": kid}
        token = jwt.encode(claims(), secret, algorithm="HS256", headers=headers)
        if keys and keys[-1] == secret:
            assert VERIFIER.verify(token).user_id == "ben"
        else:
            assert refused(VERIFIER, token) == "BAD_TOKEN"
        assert tried == [key.encode() for key in keys]


def test_every_flipped_bit_is_refused() -> None:
    """T-X4: each bit of the whole token, one after the other."""
    token = mint_token(SECRET.encode(), "qim", "acme", "ben", 600, int(time.time()))[0]
    VERIFIER.verify(token)
    data = bytearray(token.encode())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert refused(VERIFIER, data.decode("latin-1")) == "BAD_TOKEN"
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("end", ["=", "==", "\n", " ", "!", "%", "\0", ".", "A", "\u200b"])
def test_a_token_has_one_spelling(end: str) -> None:
    """Decoders pass over padding, odd characters and spare bits; who lists tokens as taken back cannot."""
    token = mint_token(SECRET.encode(), "qim", "acme", "ben", 600, int(time.time()))[0]
    assert refused(VERIFIER, token + end) == "BAD_TOKEN"
    assert refused(VERIFIER, token[:-5] + end + token[-5:]) == "BAD_TOKEN"


def test_expiry_has_a_leeway() -> None:
    """30 s late is accepted, more is TOKEN_EXPIRED, also when everything else is right."""
    now = int(time.time())
    assert VERIFIER.verify(jwt.encode(claims(exp=now - 20), SECRET, algorithm="HS256"))
    assert refused(VERIFIER, jwt.encode(claims(exp=now - 60), SECRET, algorithm="HS256")) == "TOKEN_EXPIRED"
    assert refused(VERIFIER, jwt.encode(claims(exp=now - 60), "w" * 40, algorithm="HS256")) == "BAD_TOKEN"


@pytest.mark.parametrize("exp", [1e999, -1, "x", None, [], 2**70])
def test_strange_expiries(exp: Any) -> None:
    """Claims of a strange type from a trusted signer raise nothing else."""
    body = json.dumps(claims(exp=exp)).replace('"Infinity"', "Infinity").encode()
    token = jwt.api_jws.encode(body, SECRET, algorithm="HS256")
    if isinstance(exp, int) and exp > 0:
        assert VERIFIER.verify(token).expires_at == exp
    else:
        assert refused(VERIFIER, token) == ("TOKEN_EXPIRED" if exp == -1 else "BAD_TOKEN")


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An RSA and an EC key, and the JWKS file with their public halves."""
    rsa_key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    ec_key = ec.generate_private_key(ec.SECP256R1())
    rsa_jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key.public_key()))
    ec_jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec_key.public_key()))
    entries = [
        rsa_jwk | {"kid": "r1", "alg": "RS256", "use": "sig"},
        ec_jwk | {"kid": "e1", "alg": "ES256", "use": "sig"},
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U", "kid": "h1", "alg": "HS256"},
    ]
    path = tmp_path_factory.mktemp("jwks") / "jwks.json"
    path.write_text(json.dumps({"keys": entries}))
    return {"rsa": rsa_key, "ec": ec_key, "path": path}


def test_jwks(key_files: dict[str, Any]) -> None:
    """RS256 and ES256 with and without kid; a symmetric key of the file is not taken."""
    verifier = TokenVerifier.from_settings(Settings(jwt_jwks_file=key_files["path"]))
    for key, algorithm, kid in ((key_files["rsa"], "RS256", "r1"), (key_files["ec"], "ES256", "e1")):
        for headers in ({"kid": kid}, {}):
            token = jwt.encode(claims(), key, algorithm=algorithm, headers=headers)
            assert verifier.verify(token).user_id == "ben"
    assert refused(verifier, jwt.encode(claims(), key_files["rsa"], algorithm="RS256", headers={"kid": "x"}))
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    assert refused(verifier, jwt.encode(claims(), other, algorithm="RS256")) == "BAD_TOKEN"
    hmac_key = b"secretsecretsecretsecretsecretse"
    assert refused(verifier, jwt.encode(claims(), hmac_key, algorithm="HS256")) == "BAD_TOKEN"


def test_a_public_key_is_no_hmac_secret(key_files: dict[str, Any]) -> None:
    """Algorithm confusion: HS256 with the bytes of the public key as secret."""
    verifier = TokenVerifier.from_settings(
        Settings(jwt_jwks_file=key_files["path"], jwt_secret=SecretStr(SECRET))
    )
    public = key_files["rsa"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    body = jwt.utils.base64url_encode(json.dumps(claims()).encode())
    import hashlib
    import hmac

    mac = hmac.new(pem, header + b"." + body, hashlib.sha256).digest()
    forged = b".".join((header, body, jwt.utils.base64url_encode(mac))).decode()
    assert refused(verifier, forged) == "BAD_TOKEN"
    assert refused(verifier, jwt.encode(claims(), None, algorithm="none")) == "BAD_TOKEN"


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    """No key at all, a file that is none, a file without a usable key: said at the start."""
    with pytest.raises(ConfigError, match="QIM_JWT_SECRET"):
        TokenVerifier.from_settings(Settings())
    for text in ("", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "AAAA", "alg": "HS256"}]}'):
        path = tmp_path / "jwks.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match="jwt_jwks_file"):
            TokenVerifier.from_settings(Settings(jwt_jwks_file=path))
    with pytest.raises(ConfigError, match="jwt_jwks_file"):
        TokenVerifier.from_settings(Settings(jwt_jwks_file=tmp_path / "none.json"))


@given(st.text(max_size=300) | st.text('eyJ.-_{}"A', max_size=300))
@settings(max_examples=400, deadline=None)
def test_any_text_is_refused(token: str) -> None:
    """T-F1: no text raises anything else."""
    assert refused(VERIFIER, token) == "BAD_TOKEN"


def test_damaged_headers_are_refused() -> None:
    """T-F1: valid base64 of random JSON-like bytes as header, with a good signature format."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    pieces = [
        b"{",
        b"}",
        b'"alg"',
        b":",
        b'"HS256"',
        b"[",
        b"null",
        b"1e999",
        b'"kid"',
        b",",
        b"\xff",
        b"true",
    ]
    for _ in range(2_000):
        header = jwt.utils.base64url_encode(b"".join(rng.choices(pieces, k=rng.randrange(0, 9))))
        body = jwt.utils.base64url_encode(b"".join(rng.choices(pieces, k=rng.randrange(0, 9))))
        assert refused(VERIFIER, b".".join((header, body, b"AAAA")).decode()) == "BAD_TOKEN"
    assert refused(VERIFIER, "a" * (limits.ACCESS_TOKEN_MAX + 1)) == "BAD_TOKEN"
