"""Certificates of servers and links on real sockets: who is let in, and files that change under a server."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from qim_streams.api.app import build_api
from qim_streams.api.server import listen, serve
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.commit.rpc_listener import READY_PATH
from qim_streams.commit.rpc_protocol import PATH, VERSION, VERSION_HEADER
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.errors import ConfigError, Outcome, StoreUnavailable
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.ownership.ports import Grant
from qim_streams.placement import outbox_partition
from qim_streams.settings import load_settings
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from qim_streams.testing.memory_writer import WriterRig
from qim_streams.tls import CertificateWatch, LinkTls, ServerFiles, client_context, server_context
from tests.support.certificates import Authority, Pair, serial_in, serial_of
from tests.unit.api.fakes import KEY, FakeWriter, deps

SECRET = b"s" * 32


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def files(pair: Pair, ca: Path | None = None, *, must_show: bool = True) -> ServerFiles:
    return ServerFiles("internal_tls_cert_file", pair.cert, pair.key, ca, must_show)


# -- files


def test_files_of_no_use_are_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("one"), authority.issue("two")
    with pytest.raises(ConfigError, match=r"internal_tls_cert_file: .*FileNotFoundError"):
        server_context(files(Pair(tmp_path / "none", pair.key)))
    with pytest.raises(ConfigError, match=r"internal_tls_cert_file: .*SSLError"):
        server_context(files(Pair(pair.cert, other.key)))
    with pytest.raises(ConfigError, match="redis_tls_ca_file"):
        client_context("redis_tls_ca_file", tmp_path / "none")


@pytest.mark.parametrize(
    "given",
    [
        {"gateway_tls_cert_file": "a"},
        {"redis_tls_key_file": "a"},
        {"internal_tls_cert_file": "a", "internal_tls_key_file": "b"},
        {"kafka_sasl_mechanism": "PLAIN", "kafka_sasl_user": "u"},
        {"kafka_sasl_mechanism": "GSSAPI"},
    ],
)
def test_half_of_a_setting_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"(?i){next(iter(given))}"):
        load_settings(**given)


async def shown(port: int, ca: Path) -> int:
    """The serial number of the certificate that a server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context("x", ca))
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return serial_of(der)


async def test_a_replaced_certificate_is_shown_without_a_restart(authority: Authority) -> None:
    """New connections get it, what is open stays, and a pair that does not fit changes nothing."""
    pair, watch = authority.issue("server"), CertificateWatch(1)
    first = serial_in(pair.cert)
    context = watch.context(files(pair))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context("x", authority.ca))
    assert await shown(port, authority.ca) == first
    assert watch.look() == 0

    pair.key.write_bytes(authority.issue("other").key.read_bytes())  # half of a change
    assert watch.look() == 0
    assert await shown(port, authority.ca) == first

    second = serial_in(authority.issue("server").cert)
    assert second != first
    assert watch.look() == 1
    assert await shown(port, authority.ca) == second
    writer.write(b"still here\n")
    assert await reader.readline() == b"still here\n"
    writer.close()
    server.close()


# -- links between roles


class Node:
    """A writer that serves every partition under TLS."""

    def __init__(self, pair: Pair, ca: Path) -> None:
        self.tier = MemoryHotTier(lambda t, c: outbox_partition(t, c, 1))
        self.rig = WriterRig(self.tier, [], node="w1", boot=1)
        self.server = RpcServer(self.rig.writer, self.rig.groups, SECRET, self.rig.die)
        self.server.tls = server_context(files(pair, ca, must_show=False))
        self.port = 0

    async def start(self) -> None:
        self.port = await self.server.start("127.0.0.1", 0)
        grant = await self.rig.leases.acquire("ob:0", "w1", 1, f"127.0.0.1:{self.port}", 60_000)
        assert isinstance(grant, Grant)
        await self.rig.writer.grant(grant).ready.wait()

    async def group(self, tls: LinkTls | None, timeout_s: float = 20.0) -> str:
        """Make a group through links with `tls`."""
        links = WriterLinks(MemoryLeaseStore(self.tier), SECRET, "gw-1", 1, tls=tls)
        await links.start()
        try:
            command = GroupCommand(GroupOp.CREATE, "acme", "ann", "room")
            return (await links.group(command, timeout_s)).conversation.conversation_id
        finally:
            await links.close()


@pytest.fixture
async def node(authority: Authority) -> AsyncIterator[Node]:
    made = Node(authority.issue("writer", "qim-internal"), authority.ca)
    await made.start()
    yield made
    await made.server.close(0.2)
    made.rig.kill()


def link(authority: Authority, pair: Pair | None, name: str = "qim-internal") -> LinkTls:
    cert, key = pair or (None, None)
    return LinkTls(client_context("internal_tls_cert_file", authority.ca, cert, key), name)


async def test_roles_of_one_authority_speak(authority: Authority, node: Node) -> None:
    assert await node.group(link(authority, authority.issue("gateway", "qim-internal"))) == "room"


async def test_nobody_else_is_let_in(authority: Authority, node: Node, tmp_path: Path) -> None:
    """Without TLS, without a certificate, with a stranger's, or of another name: nothing was applied."""
    stranger = Authority(tmp_path / "strangers", "strangers")
    ours = client_context("x", authority.ca)
    theirs = stranger.issue("gateway", "qim-internal")
    ours.load_cert_chain(theirs.cert, theirs.key)
    good = authority.issue("gateway", "qim-internal")
    for tls in (None, link(authority, None), LinkTls(ours, "qim-internal"), link(authority, good, "else")):
        with pytest.raises(StoreUnavailable) as refused:
            await node.group(tls, timeout_s=0.4)
        assert refused.value.outcome is Outcome.NOT_APPLIED
    assert await node.group(link(authority, good)) == "room"


async def test_a_probe_needs_no_certificate_and_gets_no_further(authority: Authority, node: Node) -> None:
    context = client_context("x", authority.ca)
    base = f"https://127.0.0.1:{node.port}"
    async with aiohttp.ClientSession() as session:
        ready = await session.get(f"{base}{READY_PATH}", ssl=context, server_hostname="qim-internal")
        assert ready.status == 200
        headers = {VERSION_HEADER: str(VERSION)}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(
                f"{base}{PATH}", ssl=context, server_hostname="qim-internal", headers=headers
            )
        assert refused.value.status == 403


# -- the admin API


async def test_the_admin_api_under_tls(authority: Authority) -> None:
    pair, stop = authority.issue("api"), asyncio.Event()
    listener, watch = listen("127.0.0.1", 0), CertificateWatch(1)
    port = listener.getsockname()[1]
    app = build_api(deps(FakeWriter()))
    serving = asyncio.create_task(serve(app, listener, stop, watch.context(files(pair))))
    verify = ssl.create_default_context(cafile=str(authority.ca))
    async with httpx.AsyncClient(verify=verify, headers={"X-Api-Key": KEY}) as session:
        assert (await session.get(f"https://127.0.0.1:{port}/healthz")).status_code == 200
        with pytest.raises(httpx.HTTPError):
            await session.get(f"http://127.0.0.1:{port}/healthz")
    fresh = serial_in(authority.issue("api").cert)
    assert watch.look() == 1
    assert await shown(port, authority.ca) == fresh
    stop.set()
    await asyncio.wait_for(serving, 20)
