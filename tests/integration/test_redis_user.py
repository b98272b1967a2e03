"""The roles' user on a real Redis: what it may not do, and an ACL file as operators get it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.redis_server import EmbeddedRedis, find_redis_server
from qim_streams.redis_acl import COMMANDS, rules
from tests.support.waiting import eventually_sync

DOCKER = Path(__file__).resolve().parents[2] / "docker"
FORBIDDEN = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "CONFIG GET *", "CONFIG SET maxmemory 1", "SHUTDOWN",
    "DEBUG SLEEP 0",
    "ACL LIST", "ACL WHOAMI", "MONITOR", "SAVE", "BGREWRITEAOF", "REPLICAOF NO ONE", "SLAVEOF NO ONE", "SYNC",
    "PSYNC ? -1", "SCRIPT FLUSH", "SCRIPT KILL", "CLIENT LIST", "CLIENT KILL TYPE normal", "MODULE LIST",
    "DUMP {a}:b", "RESTORE {a}:b 0 x", "MIGRATE h 1 k 0 1", "RENAME {a}:b {a}:c", "RANDOMKEY", "SWAPDB 0 1",
    "SELECT 1",
    "LATENCY RESET", "SLOWLOG GET", "CLUSTER RESET", "SUBSCRIBE other", "PUBLISH other x", "PSUBSCRIBE *",
    "GET other", "SET other 1", "EVAL return(redis.call('get','other')) 0",
    "EVAL return(redis.call('flushall')) 0",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A server of its own: the tests only ask it what it refuses."""
    made = EmbeddedRedis(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("command", FORBIDDEN)
def test_the_user_of_roles_may_not(server: EmbeddedRedis, command: str) -> None:
    with redis.Redis.from_url(server.roles_url) as client, pytest.raises(redis.ResponseError) as refused:
        client.execute_command(*command.split(" "))  # type: ignore[no-untyped-call]
    assert isinstance(refused.value, redis.exceptions.NoPermissionError) or "can't" in str(refused.value)


def test_every_command_of_the_list_exists(server: EmbeddedRedis) -> None:
    """A list with a typing error would refuse something that is used."""
    with redis.Redis.from_url(server.url) as client:
        wanted = {name.partition("|")[0] for name in COMMANDS}
        known = client.execute_command("COMMAND", "INFO", *sorted(wanted))  # type: ignore[no-untyped-call]
        assert set(known) == wanted


def test_the_file_of_operators_is_the_list() -> None:
    assert (DOCKER / "redis" / "commands").read_text().strip() == rules()


def test_the_script_of_operators_makes_a_file_that_a_server_takes(tmp_path: Path) -> None:
    """`docker/secrets.sh` as it is: a server with its ACL file lets the user in, and nobody else."""
    home = tmp_path / "docker"
    shutil.copytree(DOCKER / "redis", home / "redis")
    shutil.copy(DOCKER / "secrets.sh", home)
    subprocess.run([str(home / "secrets.sh")], check=True, capture_output=True)
    secrets = home / "secrets"
    assert secrets.stat().st_mode & 0o077 == 0  # the files are for containers, too, which run as others
    password = (secrets / "redis_password").read_text().strip()
    (port,) = free_ports(1)
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "")
    server = subprocess.Popen(
        [find_redis_server(), *options, "--aclfile", str(secrets / "redis_acl")], stdout=subprocess.DEVNULL
    )
    url = f"127.0.0.1:{port}/0"
    try:
        with redis.Redis.from_url(f"redis://qim:{password}@{url}", protocol=3) as client:
            eventually_sync(lambda: _answers(client), 60, "the server to answer")
            client.hset("{a}:b", "c", "d")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.flushall()
        with redis.Redis.from_url(f"redis://{url}") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        server.terminate()
        server.wait(60)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
