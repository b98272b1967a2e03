"""What is written for the servers: configuration, versions, programs."""

import shutil
from pathlib import Path

import pytest

from qim_streams.embedded import files, java, kafka, redis_server, tansu
from qim_streams.embedded.errors import EmbeddedError, JavaMissingError
from qim_streams.embedded.java import ClassArchive, JavaRuntime, find_java, parse_major


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_kafka_properties_say_what_the_pipeline_relies_on() -> None:
    found = properties(kafka.render_properties(Path("/data/log"), 9092, 9093))
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9093"
    assert found["log.dirs"] == "/data/log"
    assert found["auto.create.topics.enable"] == "false"
    assert found["group.initial.rebalance.delay.ms"] == "0"
    assert found["group.min.session.timeout.ms"] == "1000"
    assert found["log.message.timestamp.type"] == "CreateTime"
    assert found["message.max.bytes"] == str(2 * 1024 * 1024)
    assert found["offsets.topic.num.partitions"] == found["transaction.state.log.num.partitions"] == "4"
    assert {value for name, value in found.items() if name.endswith("replication.factor")} == {"1"}


def test_kafka_properties_escape_backslashes() -> None:
    assert properties(kafka.render_properties(Path("/a\\b"), 1, 2))["log.dirs"] == "/a\\\\b"


def test_data_of_a_newer_kafka_is_refused() -> None:
    kafka.check_data_version(kafka.KAFKA_VERSION, Path("/d"))
    kafka.check_data_version("4.2.9", Path("/d"))
    with pytest.raises(EmbeddedError, match=r"written by Kafka 4\.10\.0.*--wipe"):
        kafka.check_data_version("4.10.0", Path("/d"))


def test_cluster_ids_are_random_and_never_look_like_an_option() -> None:
    """One in 64 random ids starts with '-', and `--cluster-id -x...` does not parse."""
    ids = {kafka.new_cluster_id() for _ in range(2_000)}
    assert len(ids) == 2_000
    assert {len(text) for text in ids} == {22}
    assert not any(text.startswith("-") for text in ids)


def test_redis_config_is_durable_bounded_and_on_loopback() -> None:
    text = redis_server.render_config(
        port=6379,
        data_dir=Path("/data"),
        password='a"b\\c',
        roles_password="r",
        appendfsync="always",
        memory_mb=64,
    )
    lines = text.splitlines()
    for line in (
        "bind 127.0.0.1",
        "appendonly yes",
        "appendfsync always",
        "maxmemory 64mb",
        "maxmemory-policy noeviction",
        'requirepass "a\\"b\\\\c"',
        'save ""',
    ):
        assert line in lines


def test_redis_config_refuses_a_second_line_in_a_password() -> None:
    with pytest.raises(EmbeddedError, match="control character"):
        redis_server.render_config(
            port=1,
            data_dir=Path("/d"),
            password="x\nbind 0.0.0.0",
            roles_password="r",
            appendfsync="everysec",
            memory_mb=1,
        )


def test_data_of_a_newer_redis_is_refused(tmp_path: Path) -> None:
    redis_server.check_data_version("6.2.14", tmp_path)
    files.write_private_json(tmp_path / "written-by.json", {"redis_version": "7.0.15"})
    redis_server.check_data_version("7.2.0", tmp_path)
    with pytest.raises(EmbeddedError, match=r"written by Redis 7\.0\.15"):
        redis_server.check_data_version("6.2.14", tmp_path)


def test_redis_of_the_path_goes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=7.0.15 sha=0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert redis_server.find_redis_server() == str(program)
    assert redis_server.redis_version(str(program)) == "7.0.15"


def test_a_program_that_is_no_redis_is_refused(tmp_path: Path) -> None:
    echo = shutil.which("echo")
    assert echo is not None
    with pytest.raises(EmbeddedError, match="is it a Redis server"):
        redis_server.redis_version(echo)
    with pytest.raises(EmbeddedError, match="does not run"):
        redis_server.redis_version(str(tmp_path / "missing"))


def test_without_any_program_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"apt-get install redis-server.*--redis URL"):
        redis_server.find_redis_server()
    with pytest.raises(EmbeddedError, match=r"--broker HOST:PORT"):
        tansu.find_tansu(tmp_path)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_302"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("nothing of the kind", None),
    ],
)
def test_java_versions_are_understood(text: str, major: int | None) -> None:
    assert parse_major(text) == major


@pytest.mark.parametrize("said", ['java version "1.8.0_302"', "gibberish", ""])
def test_an_old_or_odd_java_is_refused_with_the_remedy(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"17 or newer is needed: install a Java runtime"):
        find_java()


def test_no_java_at_all_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="no java on PATH") as caught:
        find_java()
    assert "\n" not in str(caught.value)


def test_a_class_archive_is_made_once_then_used(tmp_path: Path) -> None:
    runtime = JavaRuntime("java", 17, "build 1")
    archive = ClassArchive(tmp_path, "kafka", runtime, "a.jar")
    assert archive.reading_options() == []
    option = archive.options()[0]
    draft = Path(option.removeprefix("-XX:ArchiveClassesAtExit="))
    draft.write_bytes(b"half")
    archive.discard()
    archive.adopt()
    assert not archive.path.exists()
    draft.write_bytes(b"whole")
    archive.adopt()
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.path}"
    assert ClassArchive(tmp_path, "kafka", runtime, "b.jar").path != archive.path
    other = java.JavaRuntime("java", 17, "build 2")
    assert ClassArchive(tmp_path, "kafka", other, "a.jar").path != archive.path


class Rewriting:
    """A server that says how its rewrites go, one answer after the other."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self._answers, self.begun = list(answers), 0

    def bgrewriteaof(self) -> None:
        self.begun += 1

    def info(self, section: str) -> dict[str, object]:
        assert section == "persistence"
        return self._answers.pop(0)


def test_a_torn_file_that_could_not_be_written_anew_is_not_whole(tmp_path: Path) -> None:
    """D4: a full disk; whoever wrote behind the tear would lose it at the next start."""
    said: list[str] = []
    server = redis_server.EmbeddedRedis(tmp_path, progress=said.append)
    server.log_path.write_text(f"1:M # AOF loaded anyway {redis_server.TORN}\n", encoding="utf-8")
    client = Rewriting(
        {"aof_rewrite_in_progress": 1, "aof_last_bgrewrite_status": "ok"},
        {"aof_rewrite_in_progress": 0, "aof_last_bgrewrite_status": "err"},
        {"aof_rewrite_scheduled": 1, "aof_last_bgrewrite_status": "err"},
        {"aof_rewrite_in_progress": 0, "aof_last_bgrewrite_status": "ok"},
    )
    assert [server._is_whole(client) for _ in range(4)] == [False, False, False, True]  # type: ignore[arg-type]
    assert client.begun == 2
    assert ["torn file" in one for one in said] == [True]


def test_a_file_that_is_not_torn_is_whole_at_once(tmp_path: Path) -> None:
    server = redis_server.EmbeddedRedis(tmp_path, progress=lambda _: None)
    client = Rewriting()
    assert server._is_whole(client)  # type: ignore[arg-type]
    assert not client.begun
