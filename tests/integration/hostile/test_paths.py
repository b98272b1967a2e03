"""Paths that lead elsewhere: out of the console's files, around keys, to other hosts. T-X5; P17."""

import asyncio
import itertools
import secrets
import socket

import pytest

from qim_streams.console.assets import load_assets
from tests.support.battlefield import Battlefield
from tests.support.honest import Honest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

UP = (
    "..",
    "%2e%2e",
    "%2E%2e",
    ".%2e",
    "%252e%252e",
    "..;",
    "...",
    "%c0%ae%c0%ae",
    "%uff0e%uff0e",
    "\\..",
    "..%00",
)
SLASHES = ("/", "%2f", "%2F", "%252f", "\\", "%5c", "//", "/./", "%c0%af", ";/", "%0a/", "?/")
TARGETS = (("etc/passwd", 12), ("assets.py", 1))
ALONE = (
    "%00", "%0a", "%0d%0aSet-Cookie:%20a=b", "index.html%00.js", "index.html%0a", "index.html/",
    "/index.html", "/etc/passwd", "file:///etc/passwd", "C:%5cwindows%5cwin.ini", "%2fetc%2fpasswd",
    "js", "js/", ".", "./", "..", "%2e", "js/..", "js/../../rules.py", "%E2%80%AEindex.html", "INDEX.HTML",
    "index%2ehtml%20", "~root", "*", "index.html%23", "static/index.html", "con",
    "js/%2e%2e/%2e%2e/assets.py", "a" * 8_000,
)  # fmt: skip


HOSTS = (
    b"evil.example", b"[", b"[::1", b"a:b:c", b"x/y", b"x@y", b"\xff", b"", b"x" * 5_000, b"x\ty",
)  # fmt: skip


def ask(port: int, target: bytes, host: bytes = b"x", method: bytes = b"GET") -> tuple[int, bytes]:
    """Status and body of a request whose target is sent as it is; 0 when nothing came."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        line.sendall(
            method + b" " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        )
        said = b""
        while data := line.recv(65_536):
            said += data
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"set-cookie" not in head.lower()
    return (int(head.split(b" ", 2)[1]), body) if head else (0, b"")


def tricks() -> list[str]:
    """Targets below the console."""
    climbing = [
        slash.join([*[up] * deep, *target.split("/")])
        for up, slash, (target, deep) in itertools.product(UP, SLASHES, TARGETS)
    ]
    return [*climbing, *[f"js/{one}" for one in climbing[::7]], *ALONE]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
async def test_the_console_has_its_files_and_no_others(field: Battlefield, honest: Honest, step: int) -> None:
    """Whatever is asked for: a file of the table, as it is, or an answer that there is none."""
    files = {asset.content for asset in load_assets().values()}

    def all_of_them() -> None:
        for trick in tricks()[secrets.randbelow(step) :: step]:
            status, body = ask(field.api_port, b"/console/" + trick.encode())
            assert status in (200, 308, 400, 404), (trick, status)
            assert (status == 200) == (body in files), (trick, status, body[:100])
            assert b"root:" not in body
            if status == 404:
                assert b'"NO_SUCH_ROUTE"' in body, (trick, body)

    await asyncio.to_thread(all_of_them)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/tenants%0a", "/v1%2ftenants", "//v1/tenants", "/./v1/tenants", "/v1/../v1/tenants",
        "/V1/tenants", "/console/../v1/tenants", "/console/..%2fv1%2ftenants", "/healthz/../v1/tenants",
        "/v1/tenants/", "/v1;a/tenants", "http://127.0.0.1/v1/tenants", "http://evil.example/v1/tenants",
        "/docs/../v1/tenants", "/v1/tenants?key=", "/openapi.json/../v1/tenants", "/v1/tenants%00",
        "/v1/%74enants", "*", "/console/%2e%2e/v1/tenants",
    ],
)  # fmt: skip
async def test_no_spelling_gets_around_the_key(field: Battlefield, target: str) -> None:
    """What lists tenants needs a key, however it is spelt; what is no route is none."""
    status, body = await asyncio.to_thread(ask, field.api_port, target.encode())
    assert status in (400, 401, 404), (status, body[:200])
    assert b'"tenants"' not in body


@pytest.mark.parametrize("server", ["gateway", "API"])
async def test_what_a_host_header_says_is_believed_nowhere(field: Battlefield, server: str) -> None:
    """It is in no answer, and whatever is in it, nothing breaks."""
    port = field.gateway_port if server == "gateway" else field.api_port

    def all_of_them() -> None:
        for host in HOSTS:
            for target in (b"/nothing", b"/console", b"/healthz", b"/ws"):
                status, body = ask(port, target, host)
                assert status in (200, 308, 400, 404, 405, 426), (host, target, status, body[:200])
                assert b"evil" not in body

    await asyncio.to_thread(all_of_them)


async def test_methods_that_nobody_has(field: Battlefield) -> None:
    """A coded answer, never a body of the request back (TRACE), never a tunnel (CONNECT)."""

    def all_of_them() -> None:
        for method in (b"TRACE", b"CONNECT", b"PROPFIND", b"DEBUG", b"get", b"A" * 5_000, b"OPTIONS", b"PRI"):
            for target in (b"/v1/tenants", b"/console/", b"evil.example:443", b"/healthz"):
                for port in (field.api_port, field.gateway_port):
                    status, body = ask(port, target, method=method)
                    assert status in (400, 401, 404, 405), (method, target, port, status, body[:200])
                    assert b"Connection: close" not in body

    await asyncio.to_thread(all_of_them)
