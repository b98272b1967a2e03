"""Providers of push notifications that run here: APNs, FCM and a webhook, over real TLS and HTTP/2.

`FakeProviders` speaks HTTP/2 itself (`h2`), with a certificate of an authority that it made. It keeps every
request, and answers what `script` says, else as the provider does when all is well. What the answers look
like is what the providers' documents show."""

import asyncio
import datetime
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import h2.config
import h2.connection
import h2.events
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

PROJECT = "test-project"
TOPIC = "com.example.chat"


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def token(self) -> str:
        """The device's token, wherever the provider has it."""
        if self.path.startswith("/3/device/"):
            return self.path.removeprefix("/3/device/")
        return str(self.json["message"]["token"] if self.path.startswith("/v1/") else self.json["token"])

    @property
    def details(self) -> dict[str, Any]:
        """What every payload carries of the message."""
        found = self.json
        if self.path.startswith("/3/"):
            return dict(found["qim"])
        return dict(found["message"]["data"] if self.path.startswith("/v1/") else found)

    @property
    def message_id(self) -> str:
        """Of the message, hex."""
        return str(self.details["message_id"])


@dataclass
class Reply:
    """An answer to give; `None` as status: none, the connection is cut."""

    status: int | None = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[Request], Reply | Awaitable[Reply | None] | None]


def apns_error(status: int, reason: str, **more: Any) -> Reply:
    """An error of APNs: ``{"reason": ...}``, with ``timestamp`` for 410."""
    return Reply(status, {"reason": reason, **more}, {"apns-id": "0"})


def fcm_error(status: int, code: str, word: str, retry_after: str = "", violation: str = "") -> Reply:
    """An error of FCM: google.rpc.Status with FcmError, and BadRequest for a wrong field."""
    details: list[dict[str, Any]] = [
        {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}
    ]
    if violation:
        bad = {"field": violation, "description": "The registration token is not a valid one"}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [bad]})
    error = {"code": status, "message": "made up", "status": word, "details": details}
    return Reply(status, {"error": error}, {"retry-after": retry_after} if retry_after else {})


class Authority:
    """A certificate authority, a server's certificate, and the credentials of each provider, in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "made here")])
        now = datetime.datetime.now(datetime.UTC)

        def builder(subject: x509.Name, public: Any) -> x509.CertificateBuilder:
            made = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(public)
            made = made.serial_number(x509.random_serial_number())
            return made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
                now + datetime.timedelta(days=2)
            )

        ca = builder(name, key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        ca = ca.add_extension(usage, True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
        )
        server_key = ec.generate_private_key(ec.SECP256R1())
        host = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        leaf = (
            builder(host, server_key.public_key())
            .add_extension(names, False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        )
        self.ca_file = self._write("ca.pem", _pem(ca.sign(key, hashes.SHA256())))
        chain = _pem(leaf.sign(key, hashes.SHA256())) + _private(server_key)
        self.chain_file = self._write("server.pem", chain)
        apns_key = ec.generate_private_key(ec.SECP256R1())
        self.apns_public, self.apns_key_file = apns_key.public_key(), self._write("k.p8", _private(apns_key))
        self.webhook_secret = "a webhook's secret of this test run"
        self.webhook_secret_file = self._write("webhook", self.webhook_secret.encode())
        self._rsa = rsa.generate_private_key(65_537, 2_048)
        self.fcm_public = self._rsa.public_key()

    def fcm_file(self, token_uri: str) -> Path:
        """The file of a service account whose tokens come from `token_uri`."""
        account = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "key-1",
            "private_key": _private(self._rsa).decode(),
            "client_email": f"push@{PROJECT}.iam.example",
            "token_uri": token_uri,
        }
        return self._write("account.json", json.dumps(account).encode())

    def _write(self, name: str, data: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(data)
        return path


class FakeProviders:
    """All three on one port of loopback. `async with` it.

    `script` decides about requests for notifications: a reply, or None for the usual one. `tokens_made`
    counts access tokens; `revoke` makes FCM refuse those that are out."""

    def __init__(self, authority: Authority) -> None:
        self.authority, self.requests = authority, list[Request]()
        self.script: Script = lambda request: None
        self.tokens_made = 0
        self.provider_tokens: list[str] = []
        self.connections = 0
        self.port = 0
        self._good_token = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Of the host, for all of them."""
        return f"https://localhost:{self.port}"

    @property
    def per_message(self) -> Counter[tuple[str, str]]:
        """How many requests there were for each (token, message)."""
        return Counter((one.token, one.message_id) for one in self.requests)

    def settings(self, providers: str = "apns,fcm,webhook") -> dict[str, Any]:
        """The settings that lead here, without their prefix."""
        return {
            "notification_providers": providers,
            "notification_tls_ca_file": str(self.authority.ca_file),
            "apns_url": self.url,
            "apns_topic": TOPIC,
            "apns_key_file": str(self.authority.apns_key_file),
            "apns_key_id": "KEY1234567",
            "apns_team_id": "TEAM123456",
            "fcm_url": self.url,
            "fcm_credentials_file": str(self.authority.fcm_file(f"{self.url}/token")),
            "push_webhook_url": f"{self.url}/hook",
            "push_webhook_secret_file": str(self.authority.webhook_secret_file),
        }

    def revoke(self) -> None:
        """Refuse the access token that is out."""
        self._good_token = "another"

    async def __aenter__(self) -> "FakeProviders":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority.chain_file)
        context.set_alpn_protocols(["h2"])
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self.connections += 1
        self._writers.add(writer)
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        open_streams: dict[int, tuple[dict[str, str], bytearray]] = {}
        answering: set[asyncio.Task[None]] = set()
        try:
            while data := await reader.read(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        headers = {_text(name): _text(value) for name, value in event.headers}
                        open_streams[event.stream_id] = (headers, bytearray())
                    elif isinstance(event, h2.events.DataReceived):
                        open_streams[event.stream_id][1].extend(event.data)
                        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, h2.events.StreamReset):
                        open_streams.pop(event.stream_id, None)
                    elif isinstance(event, h2.events.StreamEnded):
                        headers, body = open_streams.pop(event.stream_id)
                        request = Request(headers[":path"], headers, bytes(body))
                        work = self._answer(connection, writer, event.stream_id, request)
                        task = asyncio.create_task(work)
                        answering.add(task)
                        task.add_done_callback(answering.discard)
                writer.write(connection.data_to_send())
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass  # the client is gone
        finally:
            for task in answering:
                task.cancel()
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, connection: Any, writer: asyncio.StreamWriter, stream: int, request: Request
    ) -> None:
        reply = self._token(request) if request.path == "/token" else await self._notified(request)
        if reply.status is None:
            writer.transport.abort()
            return
        body = b"" if reply.body is None else json.dumps(reply.body).encode()
        try:
            headers = [(":status", str(reply.status)), *reply.headers.items()]
            connection.send_headers(stream, headers, end_stream=not body)
            if body:
                connection.send_data(stream, body, end_stream=True)
        except h2.exceptions.ProtocolError:
            return  # the client has given the stream up
        writer.write(connection.data_to_send())

    async def _notified(self, request: Request) -> Reply:
        self.requests.append(request)
        self.changed.set()
        said = self.script(request)
        reply = await said if isinstance(said, Awaitable) else said
        return reply if reply is not None else self._usual(request)

    def _usual(self, request: Request) -> Reply:
        bearer = request.headers.get("authorization", "").split(" ", 1)[-1]
        if request.path.startswith("/3/device/"):
            self.provider_tokens.append(bearer)
            jwt.decode(bearer, self.authority.apns_public, algorithms=["ES256"])
            if request.headers["apns-topic"] != TOPIC:
                return apns_error(400, "TopicDisallowed")
            if len(request.body) > 4_096:
                return apns_error(413, "PayloadTooLarge")
            return Reply(200, None, {"apns-id": request.headers["apns-id"]})
        if request.path.startswith("/v1/"):
            if bearer != self._good_token:
                return fcm_error(401, "THIRD_PARTY_AUTH_ERROR", "UNAUTHENTICATED")
            return Reply(200, {"name": f"projects/{PROJECT}/messages/1"})
        return Reply(204)

    def _token(self, request: Request) -> Reply:
        form = parse_qs(request.body.decode())
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        where = f"{self.url}/token"
        claims = jwt.decode(form["assertion"][0], self.authority.fcm_public, ["RS256"], audience=where)
        assert claims["scope"] == "https://www.googleapis.com/auth/firebase.messaging"
        self.tokens_made += 1
        self._good_token = f"access-{self.tokens_made}"
        answer = {"access_token": self._good_token, "expires_in": 3_599, "token_type": "Bearer"}
        return Reply(200, answer)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: Any) -> bytes:
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
