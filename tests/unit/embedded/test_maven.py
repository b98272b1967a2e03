"""Jars: manifest, checksums, races and failures, with a stand-in for `mvn`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qim_streams.embedded import maven
from qim_streams.embedded.errors import JarChecksumError, JarDownloadError, JavaMissingError
from qim_streams.embedded.kafka import KAFKA_JARS
from qim_streams.embedded.maven import JarSet, ensure_jars, expected_checksums, first_error, render_pom

JARS = JarSet("thing", "1.0", ("org.example:thing:1.0", "org.example:other:2.0"))

FAKE_MVN = """#!/bin/sh
echo run >> "$MVN_RUNS"
[ -n "$MVN_FAILS" ] && { echo "[INFO] hello"; echo "[ERROR] no route to the repository"; exit 1; }
for argument in "$@"; do
  case "$argument" in -DoutputDirectory=*) out="${argument#-DoutputDirectory=}";; esac
done
mkdir -p "$out"
printf one > "$out/thing-1.0.jar"; printf two > "$out/other-2.0.jar"
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose `mvn` is `FAKE_MVN`; the file it adds a line to on each run."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "mvn").write_text(FAKE_MVN)
    (binaries / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    monkeypatch.setenv("MVN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def silent(line: str) -> None:
    """No progress."""


def test_jars_are_fetched_once_and_verified_later(tmp_path: Path, runs: Path) -> None:
    said: list[str] = []
    folder = ensure_jars(JARS, cache=tmp_path / "cache", progress=said.append)
    assert folder.jars == ("other-2.0.jar", "thing-1.0.jar")
    assert folder.classpath == f"{folder.path}/other-2.0.jar:{folder.path}/thing-1.0.jar"
    assert any("2 jars" in line for line in said)
    assert ensure_jars(JARS, cache=tmp_path / "cache", progress=said.append) == folder
    assert runs.read_text().count("run") == 1
    manifest = json.loads((folder.path / "manifest.json").read_text())
    assert manifest["jars"]["thing-1.0.jar"] == maven.sha256_of(folder.path / "thing-1.0.jar")


@pytest.mark.parametrize("damage", ["changed", "deleted", "no manifest", "bad manifest"])
def test_a_damaged_folder_is_replaced(tmp_path: Path, runs: Path, damage: str) -> None:
    folder = ensure_jars(JARS, cache=tmp_path / "cache", progress=silent)
    jar, manifest = folder.path / "thing-1.0.jar", folder.path / "manifest.json"
    if damage == "changed":
        jar.write_bytes(b"One")
    elif damage == "deleted":
        jar.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("{")
    said: list[str] = []
    again = ensure_jars(JARS, cache=tmp_path / "cache", progress=said.append)
    assert again == folder
    assert jar.read_bytes() == b"one"
    assert any("fetching it again" in line for line in said)
    assert runs.read_text().count("run") == 2


def test_a_failed_download_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MVN_FAILS", "1")
    with pytest.raises(JarDownloadError, match=r"no route to the repository.*settings\.xml.*--broker"):
        ensure_jars(JARS, cache=tmp_path / "cache", progress=silent)
    assert runs.read_text().count("run") == maven.DOWNLOAD_TRIES
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir() if path.is_dir()] == []


def test_a_killed_download_is_cleaned_up_by_the_next(tmp_path: Path, runs: Path) -> None:
    jars_root = tmp_path / "cache" / "jars"
    left_over = jars_root / f".{JARS.folder_name}.abc123" / "jars"
    left_over.mkdir(parents=True)
    ensure_jars(JARS, cache=tmp_path / "cache", progress=silent)
    assert [path.name for path in jars_root.iterdir() if path.is_dir()] == [JARS.folder_name]


def test_without_mvn_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"install Maven.*--broker HOST:PORT"):
        ensure_jars(JARS, cache=tmp_path / "cache", progress=silent)


def test_jars_that_differ_from_the_shipped_checksums_are_not_used(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "expected_checksums", lambda jar_set: {"thing-1.0.jar": "0" * 64})
    with pytest.raises(JarChecksumError, match=r"2 jars differ.*other-2\.0\.jar"):
        ensure_jars(JARS, cache=tmp_path / "cache", progress=silent)
    assert not (tmp_path / "cache" / "jars" / JARS.folder_name).exists()


def test_two_processes_that_race_make_one_download(tmp_path: Path, runs: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from qim_streams.embedded.maven import JarSet, ensure_jars; "
        f"print(ensure_jars({JARS!r}, cache=Path(sys.argv[1])).path)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(4)]
    found = {process.communicate(timeout=60)[0] for process in racing}
    assert [process.returncode for process in racing] == [0] * 4
    assert len(found) == 1
    assert runs.read_text().count("run") == 1


def test_the_pom_asks_for_exactly_the_coordinates() -> None:
    pom = render_pom(JarSet("a&b", "1", ("org.example:x:1.0",)))
    assert "<groupId>org.example</groupId><artifactId>x</artifactId><version>1.0</version>" in pom
    assert "a&amp;b" in pom


def test_other_coordinates_get_another_folder() -> None:
    other = JarSet(JARS.name, JARS.version, (*JARS.coordinates, "org.example:third:1.0"))
    assert other.folder_name != JARS.folder_name


def test_the_shipped_list_covers_the_named_kafka_jars() -> None:
    expected = expected_checksums(KAFKA_JARS)
    assert expected is not None
    for coordinate in KAFKA_JARS.coordinates:
        _, artifact, version = coordinate.split(":")
        assert len(expected[f"{artifact}-{version}.jar"]) == 64


def test_the_first_error_of_mvn_is_found_through_its_colours() -> None:
    assert first_error("[INFO] x\n[\x1b[1;31mERROR\x1b[m] boom\n[ERROR] later") == "boom"
    assert first_error("all is well") == ""


def test_the_cache_follows_the_xdg_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert maven.cache_root() == tmp_path / "xdg" / "qim-streams"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert maven.cache_root() == tmp_path / ".cache" / "qim-streams"
