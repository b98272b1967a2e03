"""The providers against servers that speak their protocols over HTTP/2 and TLS, errors as recorded."""

import hashlib
import hmac
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import jwt
import pytest

from qim_streams.errors import ConfigError
from qim_streams.notification.ports import Notification, Provider, Result
from qim_streams.roles.notification import open_providers
from qim_streams.settings import Settings
from tests.support.push_servers import Authority, FakeProviders, Reply, apns_error, fcm_error


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def fake(authority: Authority) -> AsyncIterator[FakeProviders]:
    async with FakeProviders(authority) as server:
        yield server


@pytest.fixture
async def providers(fake: FakeProviders) -> AsyncIterator[dict[str, Provider]]:
    opened = open_providers(Settings(**fake.settings(), notification_timeout_s=5))
    yield {one.name: one for one in opened}
    for one in opened:
        await one.close()


def notification(**changes: object) -> Notification:
    fields = {
        "notification_id": b"\x01" * 16,
        "tenant_id": "acme",
        "user_id": "ben",
        "device_id": "phone",
        "app": "",
        "token": "a-token",
        "conversation_id": "team",
        "conversation_seq": 42,
        "message_id": b"\x02" * 16,
        "sender_id": "ann",
        "committed_at": 1_760_000_000_123,
        "mention_type": 1,
        "badge": 7,
        "title": "New message",
        "text": "hello",
        "collapse_key": "key",
        "expires_at": 1_760_086_400,
    }
    return Notification(**(fields | changes))  # type: ignore[arg-type]  # fields of many types


async def test_a_request_searches_for_no_module(
    providers: dict[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that tries to import what is not there has the whole path searched, for each notification."""
    searched: list[str] = []

    class Finder(MetaPathFinder):
        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            searched.append(fullname)

    assert (await providers["apns"].send(notification())).result is Result.SENT
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert (await providers["apns"].send(notification())).result is Result.SENT
    assert searched == []


async def test_apns_request_has_what_apple_wants(fake: FakeProviders, providers: dict[str, Provider]) -> None:
    """H13: the badge is in the payload; the id is the same in each attempt; the token is ES256."""
    assert (await providers["apns"].send(notification())).result is Result.SENT
    (request,) = fake.requests
    headers = request.headers
    assert request.path == "/3/device/a-token"
    assert headers["apns-id"] == str(uuid.UUID(bytes=b"\x01" * 16))
    assert headers["apns-collapse-id"] == "key"
    assert headers["apns-push-type"] == "alert"
    assert headers["apns-expiration"] == "1760086400"
    assert request.json["aps"]["badge"] == 7
    assert request.json["aps"]["alert"] == {"title": "New message", "body": "hello"}
    assert request.details["conversation_seq"] == "42"
    header = jwt.get_unverified_header(fake.provider_tokens[0])
    assert (header["alg"], header["kid"]) == ("ES256", "KEY1234567")


async def test_fcm_request_has_what_google_wants(fake: FakeProviders, providers: dict[str, Provider]) -> None:
    """H13; one access token serves many notifications."""
    for _ in range(3):
        assert (await providers["fcm"].send(notification())).result is Result.SENT
    assert fake.tokens_made == 1
    message = fake.requests[0].json["message"]
    assert message["token"] == "a-token"
    assert message["android"]["notification"] == {"tag": "key", "notification_count": 7}
    assert message["data"]["badge"] == "7"
    assert all(isinstance(value, str) for value in message["data"].values())


async def test_webhook_is_signed(fake: FakeProviders, providers: dict[str, Provider]) -> None:
    assert (await providers["webhook"].send(notification())).result is Result.SENT
    (request,) = fake.requests
    at = request.headers["x-qim-timestamp"]
    secret = fake.authority.webhook_secret.encode()
    expected = hmac.new(secret, at.encode() + b"." + request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-qim-signature"] == f"v1={expected}"
    assert request.headers["idempotency-key"] == "01" * 16
    assert abs(int(at) - time.time()) < 60
    assert request.json["badge"] == 7


APNS = [
    (apns_error(400, "BadDeviceToken"), Result.DEAD, None),
    (apns_error(400, "DeviceTokenNotForTopic"), Result.DEAD, None),
    (apns_error(410, "Unregistered", timestamp=1_454_402_113_000), Result.DEAD, None),
    (apns_error(413, "PayloadTooLarge"), Result.REFUSED, None),
    (apns_error(400, "BadTopic"), Result.REFUSED, None),
    (apns_error(403, "InvalidProviderToken"), Result.DOWN, None),
    (apns_error(429, "TooManyRequests"), Result.BUSY, None),
    (apns_error(429, "TooManyProviderTokenUpdates"), Result.DOWN, None),
    (Reply(429, {"reason": "TooManyRequests"}, {"retry-after": "7"}), Result.BUSY, 7_000),
    (apns_error(500, "InternalServerError"), Result.DOWN, None),
    (apns_error(503, "Shutdown"), Result.DOWN, None),
    (Reply(502, None), Result.DOWN, None),
    (Reply(None), Result.DOWN, None),
]
FCM = [
    (fcm_error(404, "UNREGISTERED", "NOT_FOUND"), Result.DEAD, None),
    (fcm_error(403, "SENDER_ID_MISMATCH", "PERMISSION_DENIED"), Result.DEAD, None),
    (fcm_error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", violation="message.token"), Result.DEAD, None),
    (fcm_error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", violation="message.data"), Result.REFUSED, None),
    (fcm_error(429, "QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED"), Result.DOWN, 60_000),
    (fcm_error(429, "QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED", "12"), Result.DOWN, 12_000),
    (fcm_error(503, "UNAVAILABLE", "UNAVAILABLE", "3"), Result.DOWN, 3_000),
    (fcm_error(500, "INTERNAL", "INTERNAL"), Result.DOWN, None),
    (Reply(None), Result.DOWN, None),
]
WEBHOOK = [
    (Reply(410), Result.DEAD, None),
    (Reply(429, None, {"retry-after": "5"}), Result.BUSY, 5_000),
    (Reply(400), Result.REFUSED, None),
    (Reply(500), Result.DOWN, None),
    (Reply(301, None, {"location": "https://example.org/"}), Result.DOWN, None),
    (Reply(None), Result.DOWN, None),
]
CASES = [(name, *row) for name, rows in (("apns", APNS), ("fcm", FCM), ("webhook", WEBHOOK)) for row in rows]


async def test_each_error_of_each_provider_means_what_it_should(
    fake: FakeProviders, providers: dict[str, Provider]
) -> None:
    wrong = []
    for name, reply, result, retry_after in CASES:
        fake.script = lambda request, reply=reply: reply  # type: ignore[misc]  # a default is not in the type
        answer = await providers[name].send(notification())
        if (answer.result, answer.retry_after_ms) != (result, retry_after):
            wrong.append((name, reply, answer))
    assert not wrong


async def test_apns_says_since_when_a_token_is_dead(
    fake: FakeProviders, providers: dict[str, Provider]
) -> None:
    fake.script = lambda request: apns_error(410, "Unregistered", timestamp=1_454_402_113_000)
    assert (await providers["apns"].send(notification())).dead_since_ms == 1_454_402_113_000


async def test_an_expired_provider_token_is_renewed_once(fake: FakeProviders) -> None:
    """A new one is tried at once, but not more often than every twenty minutes."""
    from qim_streams.notification.apns import Apns
    from qim_streams.notification.credentials import ApnsTokens
    from qim_streams.notification.httpx_calls import HttpCalls

    clock = [1_760_000_000.0]
    tokens = ApnsTokens(fake.authority.apns_key_file.read_text(), "K", "T", lambda: clock[0])
    apns = Apns(fake.url, "com.example.chat", tokens, HttpCalls(timeout_s=5, ca_file=fake.authority.ca_file))
    refused = {tokens.current()}

    def script(request: object) -> Reply | None:
        bearer = request.headers["authorization"].split(" ")[1]  # type: ignore[attr-defined]
        return apns_error(403, "ExpiredProviderToken") if bearer in refused else None

    fake.script = script
    assert (await apns.send(notification())).result is Result.DOWN  # it is young: the clocks differ
    clock[0] += 20 * 60
    fake.requests.clear()
    assert (await apns.send(notification())).result is Result.SENT
    assert len(fake.requests) == 2
    before = tokens.current()
    clock[0] += 49 * 60
    assert tokens.current() == before
    clock[0] += 2 * 60
    assert tokens.current() != before  # well before an hour has passed
    await apns.close()


async def test_an_access_token_that_is_not_taken_is_renewed(
    fake: FakeProviders, providers: dict[str, Provider]
) -> None:
    assert (await providers["fcm"].send(notification())).result is Result.SENT
    fake.revoke()
    assert (await providers["fcm"].send(notification())).result is Result.SENT
    assert fake.tokens_made == 2


async def test_a_text_that_is_too_long_is_cut(fake: FakeProviders, providers: dict[str, Provider]) -> None:
    long = notification(text="ä" * 4_000)
    assert (await providers["apns"].send(long)).result is Result.SENT
    assert len(fake.requests[0].body) <= 4_096
    assert fake.requests[0].json["aps"]["alert"]["body"].endswith("…")
    assert (await providers["fcm"].send(long)).result is Result.SENT
    assert len(fake.requests[1].body) <= 4_096


async def test_many_notifications_share_one_connection(
    fake: FakeProviders, providers: dict[str, Provider]
) -> None:
    import asyncio

    answers = await asyncio.gather(*(providers["apns"].send(notification()) for _ in range(50)))
    assert {one.result for one in answers} == {Result.SENT}
    assert fake.connections <= 2


async def test_a_server_of_another_authority_is_not_trusted(fake: FakeProviders, tmp_path: Path) -> None:
    settings = Settings(
        **fake.settings("apns") | {"notification_tls_ca_file": str(Authority(tmp_path).ca_file)}
    )
    (apns,) = open_providers(settings)
    assert (await apns.send(notification())).result is Result.DOWN
    assert not fake.requests
    await apns.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"apns_key_file": None}, "apns_key_file"),
        ({"apns_team_id": ""}, "apns_team_id"),
        ({"fcm_credentials_file": "/nowhere"}, "fcm_credentials_file"),
        ({"push_webhook_url": "http://example.org/hook"}, "push_webhook_url"),
        ({"notification_tls_ca_file": "/nowhere"}, "notification_tls_ca_file"),
    ],
)
async def test_what_is_missing_is_named(fake: FakeProviders, changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_providers(Settings(**fake.settings() | changes))


async def test_nothing_that_is_secret_is_shown(
    fake: FakeProviders, providers: dict[str, Provider], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither tokens of devices nor those of providers, at any level of logging, in good and bad cases."""
    assert "a-token" not in repr(notification())
    with caplog.at_level(logging.DEBUG):
        for name, reply, *_ in CASES[::4]:
            fake.script = lambda request, reply=reply: reply  # type: ignore[misc]  # a default is not in the type
            await providers[name].send(notification())
    assert "a-token" not in caplog.text
    assert "bearer" not in caplog.text.lower()
    from qim_streams.notification.credentials import service_account

    text = fake.authority.fcm_file(f"{fake.url}/token").read_text()
    assert "PRIVATE" not in repr(service_account(text))
