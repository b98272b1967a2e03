"""The files of the audit log: bounded on the disk and in memory, one chain over all of them. Spec: §14.9."""

import asyncio
import errno
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.admin import audit_files
from qim_streams.admin.audit import Action, AuditBounds, AuditLog
from qim_streams.admin.audit_files import TAIL_BYTES, all_files, lines_of, newest, older
from qim_streams.admin.audit_lines import LINE_MAX, START, Position, digest, position, problems
from qim_streams.cli import main
from qim_streams.errors import ConfigError, StoreUnavailable

ACTION = Action("ann", "operator", "POST /v1/tenants/acme/groups", "192.0.2.1")
SMALL = AuditBounds(bytes_max=3 * LINE_MAX, files_max=3)


def now_ms() -> int:
    """A clock that stands."""
    return 1_764_000_000_000


def wrong(path: Path) -> list[str]:
    """What is wrong with a log."""
    return list(problems(lines_of(all_files(path))))


def numbers(path: Path) -> list[int]:
    """The numbers of all kept lines."""
    return [json.loads(line)["n"] for _, line in lines_of(all_files(path))]


async def filled(path: Path, steps: int, bounds: AuditBounds = SMALL) -> AuditLog:
    """An open log in which so much was noted."""
    log = AuditLog(path, now_ms, bounds)
    for _ in range(steps):
        await log.begin(ACTION)
    return log


async def test_a_full_file_is_continued_and_the_oldest_are_dropped(tmp_path: Path) -> None:
    """The disk is bounded, and what is kept is one chain, over restarts, too."""
    path = tmp_path / "audit.jsonl"
    for _ in range(4):
        (await filled(path, 100)).close()
        files = all_files(path)
        assert all(one.stat().st_size <= SMALL.bytes_max for one in files)
        assert len(files) <= SMALL.files_max + 1
        assert wrong(path) == []
    kept = numbers(path)
    assert len(older(path)) == SMALL.files_max
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert kept[0] > 1
    assert kept[-1] > 400  # a line of each beginning beside the steps
    assert {one.stat().st_mode & 0o777 for one in files} == {0o600}
    names = [one.name for one in older(path)]
    assert names == sorted(names)
    lasts = [json.loads(one.read_bytes().splitlines()[-1])["n"] for one in older(path)]
    assert names == [f"audit.jsonl.{number:012}" for number in lasts]


async def test_what_is_taken_out_of_the_middle_shows(tmp_path: Path) -> None:
    """A line, the first one of a file, a whole file: but the oldest, which may have been dropped."""
    path = tmp_path / "audit.jsonl"
    (await filled(path, 100)).close()
    first, second = older(path)[:2]
    assert CliRunner().invoke(main, ["audit", "verify", str(path)]).exit_code == 0
    whole = second.read_bytes()
    lines = whole.splitlines(keepends=True)
    for forged in (lines[1:], lines[:-1], [*lines[:3], lines[3].replace(b"ann", b"ben"), *lines[4:]]):
        second.write_bytes(b"".join(forged))
        assert wrong(path)
        done = CliRunner().invoke(main, ["audit", "verify", str(path)])
        assert done.exit_code == 1
        assert "line" in done.output
    second.unlink()
    assert wrong(path)
    second.write_bytes(whole)
    assert wrong(path) == []
    first.unlink()
    done = CliRunner().invoke(main, ["audit", "verify", str(path)])
    assert (done.exit_code, "in files that are not here" in done.output) == (0, True)
    (rest := path.with_name("alone")).write_bytes(b"".join(lines[1:]))
    assert wrong(rest)  # only a line that says so may begin a file


async def test_the_newest_lines_are_shown_over_files(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = await filled(path, 100)
    await log.end(7, 201)
    log.close()
    for count in (1, 5, 60, 5_000):
        shown = newest(all_files(path), count)
        assert [json.loads(line)["n"] for line in shown] == numbers(path)[-count:]
    done = CliRunner().invoke(main, ["audit", "show", str(path), "--last", "70"])
    assert done.output.count("\n") == min(70, len(numbers(path)))
    assert "continued in a new file" in done.output
    assert "7: 201" in done.output
    assert CliRunner().invoke(main, ["audit", "show", str(path), "--last", "1000000"]).exit_code == 2


async def test_no_terminal_obeys_what_a_stranger_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, now_ms)
    await log.refused(ACTION._replace(what="GET /\x1b[2J\x9b31m\u202e\r\nforged", who="\x07"), 401)
    log.close()
    (line,) = CliRunner().invoke(main, ["audit", "show", str(path)]).output.splitlines()
    assert line.isprintable()
    assert "GET /?[2J?31m???forged" in line


async def test_a_large_log_is_taken_up_by_its_end(tmp_path: Path) -> None:
    """However much is in it: 60 MB are not read, a few kilobytes are."""
    path = tmp_path / "audit.jsonl"
    (await filled(path, 2, AuditBounds(0))).close()
    end = path.read_bytes()
    with path.open("wb") as file:
        for _ in range(60):
            file.write((b"x" * 999 + b"\n") * 1_000)
        file.write(end)
    tracemalloc.start()
    log = await filled(path, 1, AuditBounds(0))
    assert newest(all_files(path), 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    log.close()
    assert peak < 20 * TAIL_BYTES
    assert json.loads(newest(all_files(path), 1)[0])["n"] == 3


async def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"x" * 100 * LINE_MAX)
    assert max(len(line) for _, line in lines_of([path])) == LINE_MAX + 1
    assert len(wrong(path)) == 100


@pytest.mark.parametrize(
    "content", [b"x" * 2 * TAIL_BYTES, b"[1]\n" * TAIL_BYTES, b'{"n":"1"}\n' * TAIL_BYTES]
)
async def test_another_file_is_not_written_into(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secrets.txt"
    path.write_bytes(content)
    for _ in range(2):  # nothing of the first try is left
        with pytest.raises(ConfigError, match="is no audit log"):
            AuditLog(path, now_ms)
    assert path.read_bytes() == content


async def test_one_process_writes_whatever_its_bounds(tmp_path: Path) -> None:
    """Also after the file was continued, and beside one that never continues it."""
    path = tmp_path / "audit.jsonl"
    for ours in (SMALL, AuditBounds(0)):
        log = await filled(path, 50, ours)
        for theirs in (SMALL, AuditBounds(0)):
            with pytest.raises(ConfigError, match="another process"):
                AuditLog(path, now_ms, theirs)
        log.close()
    (await filled(path, 1)).close()
    assert wrong(path) == []


async def test_without_a_bound_nothing_is_made_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may be somebody else's."""
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr(audit_files, "lock_beside", lambda _: tmp_path / "away" / "lock")
    (await filled(path, 3, AuditBounds(0))).close()
    with pytest.raises(ConfigError, match="audit_file"):
        AuditLog(path, now_ms, SMALL)
    assert os.listdir(tmp_path) == ["audit.jsonl"]


@pytest.mark.parametrize("step", ["rename", "new file"])
async def test_a_crash_between_the_steps_of_continuing(tmp_path: Path, step: str) -> None:
    path = tmp_path / "audit.jsonl"
    (await filled(path, 5)).close()
    path.rename(path.with_name("audit.jsonl.000000000005"))
    if step == "new file":
        path.touch()
    (tmp_path / ".audit.jsonl.next").write_bytes(b'{"n":')
    (await filled(path, 2)).close()
    assert wrong(path) == []
    assert numbers(path) == list(range(1, 9))


async def test_a_file_that_cannot_be_continued_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Noting goes before tidiness; when it can be done again it is."""
    path = tmp_path / "audit.jsonl"

    def refuse(*_: Any) -> int:
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as broken:
        broken.setattr(audit_files, "replace", refuse)
        log = await filled(path, 100)
    assert path.stat().st_size > SMALL.bytes_max
    assert caplog.text.count("cannot be continued") == 1
    await log.begin(ACTION)
    log.close()
    assert len(older(path)) == 1
    assert wrong(path) == []


@pytest.mark.parametrize("fails", ["first", "second"])
async def test_a_rename_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "audit.jsonl"
    rename = Path.rename

    def half(self: Path, target: Path) -> Path:
        if self.name == ("audit.jsonl" if fails == "first" else ".audit.jsonl.next"):
            raise OSError(errno.EACCES, "no")
        return rename(self, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", half)
        (await filled(path, 50)).close()
    assert older(path) == []
    assert wrong(path) == []


async def test_pieces_of_lines_are_ended_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while: what was not noted is refused, what comes later follows the pieces."""
    path = tmp_path / "audit.jsonl"
    log = await filled(path, 2)
    write = os.write
    for most in (10, 0, 1, 30):
        monkeypatch.setattr(os, "write", lambda file, data, most=most: write(file, data[:most]))
        with pytest.raises(StoreUnavailable):
            await log.begin(ACTION)
    monkeypatch.setattr(os, "write", write)
    await log.begin(ACTION)
    log.close()
    (await filled(path, 1)).close()
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["n"] for line in (*lines[:2], *lines[-2:])] == [1, 2, len(lines) - 1, len(lines)]
    assert len(wrong(path)) == len(lines) - 4  # the pieces, and nothing else


async def test_who_goes_away_meanwhile_leaves_a_chain(tmp_path: Path) -> None:
    """A request that is cancelled while its line is written: the next line follows it."""
    path = tmp_path / "audit.jsonl"
    log = await filled(path, 1)
    for _ in range(20):
        gone = asyncio.ensure_future(log.begin(ACTION))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        await log.begin(ACTION)
    log.close()
    assert wrong(path) == []


@given(st.lists(st.binary(max_size=40)), st.booleans())
def test_any_end_of_a_file_has_a_position_or_none(parts: list[bytes], whole: bool) -> None:
    """T-F1."""
    tail = b"\n".join(parts)
    stands = position(tail, whole)
    if stands is not None and tail:
        assert stands.number >= 1 or not whole
        assert stands.cut is not tail.endswith(b"\n")
    assert whole <= (stands is not None)


def test_where_a_log_stands() -> None:
    assert position(b"", True) == Position(0, START, False)
    assert position(b'{"n":7}\n', False) is None  # it may begin in the middle of a line
    assert position(b'\n{"n":7}\n', False) == Position(7, digest(b'{"n":7}'), False)
    assert position(b'x\n{"n":7}\nab\nc', False) == Position(9, digest(b"c"), True)
