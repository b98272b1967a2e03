"""Which archive the processes of a local stack are told to use, and when an embedded node counts as ready."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qim_streams.archive import cassandra_admin
from qim_streams.embedded.roles import RoleSpec
from qim_streams.errors import ConfigError, StoreUnavailable
from qim_streams.settings import Settings
from qim_streams.stack import run
from qim_streams.stack.plan import Addresses, StackOptions, plan_roles, role_names


def environments(
    options: StackOptions, addresses: Addresses, environ: dict[str, str]
) -> list[dict[str, str]]:
    """The environment of each process."""
    ports = {name: 1 for name, _, _ in role_names(options)}
    return [role.env for role in plan_roles(options, addresses, {}, ports, environ)]


def test_an_embedded_node_is_told_to_every_role() -> None:
    options = StackOptions(Path("/s"), archive="cassandra")
    for env in environments(options, Addresses("b:1", "redis://r", 4_242), {"QIM_CASSANDRA_HOSTS": "old"}):
        assert env["QIM_ARCHIVE"] == "cassandra"
        assert (env["QIM_CASSANDRA_HOSTS"], env["QIM_CASSANDRA_PORT"]) == ("127.0.0.1", "4242")


def test_a_cluster_of_the_environment_passes_through() -> None:
    given = {"QIM_ARCHIVE": "cassandra", "QIM_CASSANDRA_HOSTS": "10.0.0.1"}
    for env in environments(StackOptions(Path("/s")), Addresses("b:1", "redis://r"), given):
        assert given.items() <= env.items()
        assert "QIM_CASSANDRA_PORT" not in env


def test_several_archivers_need_cassandra() -> None:
    several = {"archiver": 2}
    with pytest.raises(ConfigError, match="archiver=2"):
        role_names(StackOptions(Path("/s"), workers=several, archive="rocksdb"))
    names = [
        name for name, _, _ in role_names(StackOptions(Path("/s"), workers=several, archive="cassandra"))
    ]
    assert {"archiver", "archiver-1"} <= set(names)


def spec(name: str, ready: Callable[[], bool]) -> RoleSpec:
    """A server."""
    return RoleSpec(name=name, argv=("x",), env={}, ready=ready)


def test_a_node_is_ready_when_the_archives_tables_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    state = SimpleNamespace(up=False, agrees=False)

    async def create(options: Any, replication: Any, bucket_seqs: int) -> None:
        if not state.agrees:
            raise StoreUnavailable("no agreement yet")
        made.append((options.port, replication, bucket_seqs))

    monkeypatch.setattr(cassandra_admin, "create_archive", create)
    settings = Settings(archive="cassandra", cassandra_port=4_242)
    ready = run._with_archive(spec("cassandra", lambda: state.up), settings).ready
    assert callable(ready)
    assert not ready()
    assert made == []
    state.up = True
    with pytest.raises(StoreUnavailable):
        ready()
    state.agrees = True
    assert ready()
    assert made == [(4_242, {"class": "NetworkTopologyStrategy", "replication_factor": "1"}, 1_000)]


def test_other_servers_are_left_alone() -> None:
    other = spec("redis", lambda: True)
    assert run._with_archive(other, Settings()) is other
