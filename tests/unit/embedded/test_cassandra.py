"""The embedded Cassandra without starting it: what it is told, what it is started with, when it answers."""

import socket
import threading
from pathlib import Path

import pytest

from qim_streams.embedded import cassandra, maven
from qim_streams.embedded.cassandra import CASSANDRA_JARS, EmbeddedCassandra, answers_cql, render_settings
from qim_streams.embedded.java import JavaRuntime
from qim_streams.embedded.maven import JarFolder, expected_checksums
from qim_streams.embedded.stack import EmbeddedStack


def test_the_node_listens_on_loopback_and_keeps_everything_in_its_directory() -> None:
    found = render_settings(Path("/data"), 9_042, 7_000)
    assert found["listen_address"] == found["rpc_address"] == "127.0.0.1"
    assert (found["native_transport_port"], found["storage_port"]) == (9_042, 7_000)
    folders = [value for name, value in found.items() if name.endswith("_directory")]
    assert all(str(folder).startswith("/data/") for folder in folders)
    assert found["data_file_directories"] == ["/data/data"]
    assert found["commitlog_sync"] == "batch", "it has no replicas, so what it acknowledges is on its disk"


def test_the_archiver_gets_by_with_the_servers_own_bounds_for_batches() -> None:
    """A batch within one partition is one mutation: no threshold has to be raised on a cluster."""
    assert not [name for name in render_settings(Path("/data"), 1, 2) if name.startswith("batch_size")]


def test_every_jar_has_a_checksum_and_the_agent_is_among_them() -> None:
    sums = expected_checksums(CASSANDRA_JARS)
    assert sums is not None
    assert len(sums) == 100
    assert {f"cassandra-all-{cassandra.CASSANDRA_VERSION}.jar", cassandra.AGENT_JAR} <= sums.keys()


def test_without_maven_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven.shutil, "which", lambda name: None)
    with pytest.raises(maven.JavaMissingError, match="QIM_CASSANDRA_HOSTS"):
        maven.ensure_jars(CASSANDRA_JARS, cache=tmp_path, progress=lambda line: None)


def test_the_command_has_heap_agent_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra, "find_java", lambda: JavaRuntime("java", 17, "17"))
    jars = JarFolder(tmp_path, (cassandra.AGENT_JAR, "x.jar"))
    monkeypatch.setattr(cassandra, "ensure_jars", lambda *args, **kwargs: jars)
    server = EmbeddedCassandra(tmp_path / "node", heap_mb=300)
    command = server.prepare()
    try:
        assert "-Xmx300m" in command.argv
        assert f"-javaagent:{tmp_path / cassandra.AGENT_JAR}" in command.argv
        assert command.argv[-1] == "org.apache.cassandra.service.CassandraDaemon"
        assert (tmp_path / "node" / "cassandra.yaml").stat().st_mode & 0o777 == 0o600
        assert not [name for name in command.env if name.startswith("QIM_")]
    finally:
        server.release()


@pytest.mark.parametrize(
    ("answer", "ready"),
    [(bytes((0x84, 0, 0, 0, 6)), True), (b"HTTP/", False), (b"", False), (bytes((0x84, 0, 0, 0, 0)), False)],
)
def test_a_node_is_ready_when_it_answers_in_cql(answer: bytes, ready: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(9) == bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert answers_cql(listening.getsockname()[1]) is ready
        thread.join()
    assert not answers_cql(1)


def test_a_stack_starts_one_only_if_asked(tmp_path: Path) -> None:
    external = {"brokers": "b:1", "redis_url": "redis://r"}
    assert EmbeddedStack(tmp_path / "a", **external).servers == []  # type: ignore[arg-type]
    (server,) = EmbeddedStack(tmp_path / "b", cassandra=True, **external).servers  # type: ignore[arg-type]
    assert isinstance(server, EmbeddedCassandra)
    assert server.data_dir == (tmp_path / "b" / "cassandra").absolute()
