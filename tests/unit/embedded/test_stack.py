"""State directories: who holds them, what is wiped, which broker is chosen. No server is started."""

from pathlib import Path

import pytest

from qim_streams.embedded import files, stack
from qim_streams.embedded.errors import EmbeddedError, JavaMissingError, StateDirLockedError
from qim_streams.embedded.kafka import FORMATTED_NAME
from qim_streams.embedded.locking import DirectoryLock
from qim_streams.embedded.stack import (
    MARKER_NAME,
    EmbeddedStack,
    choose_broker,
    read_stack,
    wipe,
)
from qim_streams.embedded.status import LOCK_NAME, STATUS_NAME, read_status

EXTERNAL = {"brokers": "broker:9092", "redis_url": "redis://elsewhere:6379/0"}


def no_java() -> None:
    raise JavaMissingError("none")


def test_external_servers_are_published_and_nothing_is_started(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with EmbeddedStack(state, **EXTERNAL) as opened:
        assert opened.servers == []
        assert opened.server_roles() == []
        found = read_stack(state)
        assert found is not None
        assert (found["brokers"], found["redis_url"]) == tuple(EXTERNAL.values())
        assert found["broker_kind"] == found["redis_kind"] == "external"
        assert (state / "stack.json").stat().st_mode & 0o777 == 0o600
        assert state.stat().st_mode & 0o777 == 0o700
    assert not (state / "stack.json").exists()
    assert read_stack(state) is None


def test_one_stack_per_directory_and_many_side_by_side(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path / "a", **EXTERNAL), EmbeddedStack(tmp_path / "b", **EXTERNAL):
        with pytest.raises(StateDirLockedError, match=r"in use by pid \d+; stop it"):
            EmbeddedStack(tmp_path / "a", **EXTERNAL).prepare()
        assert read_stack(tmp_path / "a") is not None  # the refused one took nothing away
    EmbeddedStack(tmp_path / "a", **EXTERNAL).prepare().close()


def test_a_description_left_by_a_killed_stack_is_not_believed(tmp_path: Path) -> None:
    files.write_private_json(tmp_path / "stack.json", {"brokers": "old"})
    assert read_stack(tmp_path) is None


def test_wipe_deletes_what_a_stack_made_and_keeps_the_lock(tmp_path: Path) -> None:
    state = tmp_path / "state"
    wipe(state)
    EmbeddedStack(state, **EXTERNAL).prepare().close()
    (state / "roles" / "mailbox").mkdir(parents=True)
    (state / "secrets.json").touch()
    wipe(state)
    assert {entry.name for entry in state.iterdir()} == {LOCK_NAME, MARKER_NAME}


def test_wipe_refuses_while_the_stack_or_a_server_is_there(tmp_path: Path) -> None:
    opened = EmbeddedStack(tmp_path / "state", **EXTERNAL).prepare()
    with pytest.raises(StateDirLockedError):
        wipe(tmp_path / "state")
    opened.close()
    with DirectoryLock(tmp_path / "state" / "kafka" / "owner.lock"), pytest.raises(StateDirLockedError):
        wipe(tmp_path / "state")
    wipe(tmp_path / "state")


def test_wipe_refuses_a_directory_with_other_peoples_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    EmbeddedStack(tmp_path, **EXTERNAL).prepare().close()
    with pytest.raises(EmbeddedError, match="by hand"):
        wipe(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_the_broker_is_kafka_where_it_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(stack, "find_java", lambda: None)
    monkeypatch.setattr(stack.shutil, "which", lambda name: "/usr/bin/mvn")
    assert choose_broker("auto", tmp_path, cache) == "kafka"
    monkeypatch.setattr(stack.shutil, "which", lambda name: None)
    assert choose_broker("auto", tmp_path, cache) == "tansu"
    monkeypatch.setattr(stack, "is_cached", lambda jars, where: True)
    assert choose_broker("auto", tmp_path, cache) == "kafka"
    monkeypatch.setattr(stack, "find_java", no_java)
    assert choose_broker("auto", tmp_path, cache) == "tansu"
    assert choose_broker("kafka", tmp_path, cache) == "kafka"


def test_a_directory_with_a_kafka_log_stays_with_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "find_java", no_java)
    files.write_private_json(tmp_path / "kafka" / FORMATTED_NAME, {})
    assert choose_broker("auto", tmp_path, tmp_path) == "kafka"


def test_a_status_of_an_earlier_stack_is_not_taken_for_the_present_one(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    document = {"format": 1, "pid": 1, "state": "running", "updated_at_ms": 5, "message": None, "roles": []}
    files.write_private_json(tmp_path / STATUS_NAME, document)
    stale = read_status(tmp_path)
    assert stale is not None
    assert (stale.alive, stale.pid, stale.state) == (False, 1, "running")
    with DirectoryLock(tmp_path / LOCK_NAME):
        present = read_status(tmp_path)
    assert present is not None
    assert present.alive
    assert present.pid != 1
    assert present.state == "starting"


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_follows_a_log_in_memory_ends_with_it(tmp_path: Path, in_memory: bool) -> None:
    state, redis_url = tmp_path / "state", EXTERNAL["redis_url"]
    with EmbeddedStack(state, **EXTERNAL):
        pass  # the directory is ours now
    for name in ("roles", "archive", "log"):
        (state / name).mkdir(exist_ok=True)
    brokers = None if in_memory else EXTERNAL["brokers"]
    EmbeddedStack(state, brokers=brokers, broker="tansu", redis_url=redis_url).prepare().close()
    assert (state / "roles").exists() == (state / "archive").exists() != in_memory
    assert (state / "log").exists()
