"""Operators: roles, keys that come and go, and a record of what they did that shows when it was changed."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from qim_streams.admin import audit as module
from qim_streams.admin.audit import Action, AuditLog
from qim_streams.admin.audit_files import all_files, lines_of
from qim_streams.admin.audit_lines import LINE_MAX, problems
from qim_streams.admin.keys import AdminKeys
from qim_streams.admin.rules import Role, find, needed, parse_keys
from qim_streams.api.app import build_api
from qim_streams.cli import main
from qim_streams.errors import ConfigError, StoreUnavailable
from tests.unit.api.fakes import BASE, KEY, FakeWriter, deps

KEYS = {role: f"{role.name.lower()}-key-of-more-than-32-characters" for role in Role}
ACTION = Action("ann", "operator", "POST /v1/tenants/acme/groups", "192.0.2.1")


def line(role: Role, name: str = "", key: str = "") -> str:
    """A line of a file of keys."""
    digest = hashlib.sha256((key or KEYS[role]).encode()).hexdigest()
    return f"{name or role.name.lower() + '1'} {role.name.lower()} {digest}  # a comment\n"


class Clock:
    """Seconds and milliseconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def ms(self) -> int:
        """The same in milliseconds."""
        return int(self.now_s * 1_000)


# -- rules


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/tenants/acme/groups/room", Role.READER),
        ("GET", "/v1/dead-letters", Role.READER),
        ("GET", "/v1/dead-letters/0-17", Role.OPERATOR),
        ("POST", "/v1/dead-letters/0-17/discard", Role.OPERATOR),
        ("POST", "/v1/tenants/acme/groups", Role.OPERATOR),
        ("DELETE", "/v1/tenants/acme/groups/room/members/ben", Role.OPERATOR),
        ("POST", "/v1/tenants/acme/tokens", Role.ADMIN),
        ("PUT", "/v1/tenants/acme/rules", Role.ADMIN),
        ("GET", "/v1/tenants/acme/rules", Role.READER),
        ("BREW", "/v1/anything", Role.OPERATOR),
        ("POST", "/v1/tenants/acme/tokens\n", Role.ADMIN),  # a router may see tokens there, and no line feed
        ("GET", "/v1/dead-letters/0-17\n", Role.ADMIN),
        ("GET", "/v1/tenants/\u0430cme/groups", Role.ADMIN),
    ],
)
def test_what_a_request_needs(method: str, path: str, role: Role) -> None:
    assert needed(method, path) is role


def test_a_file_of_keys() -> None:
    keys = parse_keys("# ours\n\n" + line(Role.READER) + line(Role.ADMIN))
    assert [(key.name, key.role) for key in keys] == [("reader1", Role.READER), ("admin1", Role.ADMIN)]
    assert find(keys, KEYS[Role.ADMIN]) == keys[1]
    assert find(keys, KEYS[Role.OPERATOR]) is None
    assert find(keys, "\udcff") is None


@pytest.mark.parametrize(
    "text",
    ["ann reader", "ann king " + "0" * 64, "ann reader xyz", "a/b reader " + "0" * 64, line(Role.READER) * 2],
)
def test_a_wrong_line_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12]"):
        parse_keys(text)


# -- keys


def test_a_key_is_taken_back_while_it_runs(tmp_path: Path) -> None:
    """And a file that is broken leaves nobody but the key of the settings."""
    path, clock = tmp_path / "keys", Clock()
    path.write_text(line(Role.READER) + line(Role.OPERATOR))
    keys = AdminKeys(KEY.encode(), path, clock)
    found = keys.find(KEYS[Role.OPERATOR])
    assert found is not None
    assert found.role is Role.OPERATOR
    path.write_text(line(Role.READER))
    clock.now_s += 2
    assert keys.find(KEYS[Role.OPERATOR]) is None
    assert keys.find(KEYS[Role.READER]) is not None
    path.write_text("nonsense\n")
    clock.now_s += 2
    assert keys.find(KEYS[Role.READER]) is None
    main_key = keys.find(KEY)
    assert main_key is not None
    assert main_key.role is Role.ADMIN
    path.unlink()
    clock.now_s += 2
    assert keys.find(KEYS[Role.READER]) is None
    path.write_text(line(Role.READER))
    clock.now_s += 2
    assert keys.find(KEYS[Role.READER]) is not None


def test_a_file_of_no_use_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(ConfigError, match="admin_keys_file"):
        AdminKeys(KEY.encode(), path)
    path.write_text(line(Role.ADMIN, name="admin"))
    with pytest.raises(ConfigError, match="another"):
        AdminKeys(KEY.encode(), path)


# -- the record


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a record."""
    return [json.loads(text) for text in path.read_text().splitlines()]


def wrong(path: Path) -> list[str]:
    """What is wrong with a record."""
    return list(problems(lines_of(all_files(path))))


async def test_the_record_goes_on_over_restarts_and_shows_changes(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.jsonl", Clock()
    for _ in range(3):
        log = AuditLog(path, clock.ms)
        number = await log.begin(ACTION)
        await log.end(number, 201)
        log.close()
    assert [row["n"] for row in rows(path)] == [1, 2, 3, 4, 5, 6]
    assert rows(path)[3]["of"] == 3
    assert wrong(path) == []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, forged in enumerate(
        ([*lines[:2], *lines[3:]], [*lines[:2], lines[2].replace(b"ann", b"ben"), *lines[3:]], lines[1:])
    ):
        copy = tmp_path / f"{number}"
        copy.write_bytes(b"".join(forged))
        assert wrong(copy)
    done = CliRunner().invoke(main, ["audit", "verify", str(path)])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(main, ["audit", "show", str(path), "--last", "2"])
    assert "ann (operator) from 192.0.2.1" in shown.output
    assert "5: 201" in shown.output
    assert CliRunner().invoke(main, ["audit", "verify", str(tmp_path / "1")]).exit_code == 1


async def test_a_line_that_a_crash_cut_off_is_seen_and_does_not_harm_the_next(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.jsonl", Clock()
    log = AuditLog(path, clock.ms)
    await log.begin(ACTION)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"n":2,"at')
    log = AuditLog(path, clock.ms)
    await log.begin(ACTION)
    log.close()
    assert json.loads(path.read_bytes().splitlines()[2])["n"] == 3
    assert wrong(path) == ["line 2: is none of ours, or was cut off"]


async def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", Clock().ms)
    with pytest.raises(ConfigError, match="another process"):
        AuditLog(tmp_path / "audit.jsonl", Clock().ms)
    log.close()
    with pytest.raises(ConfigError, match="audit_file"):
        AuditLog(tmp_path, Clock().ms)


async def test_no_text_makes_a_line_too_long(tmp_path: Path) -> None:
    """A stranger chooses the path that he asks for: each of its characters may take twelve bytes."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, Clock().ms)
    await log.refused(Action(*["\U0001f600" * 600] * 4), "x" * 600)
    await log.refused(ACTION, 401)
    log.close()
    assert max(map(len, path.read_bytes().splitlines())) <= LINE_MAX
    assert rows(path)[0]["what"]
    assert wrong(path) == []


async def test_strangers_do_not_fill_the_disk(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.jsonl", Clock()
    log = AuditLog(path, clock.ms)
    long = ACTION._replace(what="x" * 100_000, origin="é" * 10_000)
    for _ in range(500):
        await log.refused(long, 401)
    assert len(rows(path)) == module.REFUSALS_PER_S
    clock.now_s += 1
    await log.refused(long, 401)
    assert rows(path)[-1]["untold"] == 490
    assert path.stat().st_size < 11 * LINE_MAX * 2
    log.close()


# -- in front of the API


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[Any, Path, AuditLog]]:
    """A caller with a role's key, the record, and the log that writes it."""
    keys, path = tmp_path / "keys", tmp_path / "audit.jsonl"
    keys.write_text("".join(line(role) for role in Role))
    log = AuditLog(path, Clock().ms)
    app = build_api(replace(deps(FakeWriter()), admins=AdminKeys(KEY.encode(), keys), audit=log))

    async def call(method: str, url: str, key: str | None, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=("192.0.2.7", 5))
        headers = {} if key is None else {"X-Api-Key": key}
        async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=headers) as client:
            return await client.request(method, url, **more)

    yield call, path, log
    log.close()


async def test_roles_and_what_is_noted(api: Any) -> None:
    """A matrix of roles and requests; every change has two lines with who, what, from where and outcome."""
    call, path, _ = api
    requests = {
        Role.READER: ("GET", f"{BASE}/rules", {}),
        Role.OPERATOR: ("POST", f"{BASE}/groups", {"json": {"conversation_id": "room", "members": ["ann"]}}),
        Role.ADMIN: ("PUT", f"{BASE}/rules", {"json": {"fanout_per_s": 7}}),
    }
    for wanted, (method, url, more) in requests.items():
        for role, key in KEYS.items():
            answer = await call(method, url, key, **more)
            assert (answer.status_code not in (401, 403)) == (role >= wanted), (wanted, role, answer.text)
            if role < wanted:
                assert (answer.status_code, answer.json()["name"]) == (403, "ROLE_REQUIRED")
    noted = rows(path)
    begun = [row for row in noted if row["step"] == "begun"]
    assert [(row["who"], row["what"]) for row in begun] == [
        ("operator1", f"POST {BASE}/groups"),
        ("admin1", f"POST {BASE}/groups"),
        ("admin1", f"PUT {BASE}/rules"),
    ]
    assert {row["origin"] for row in begun} == {"192.0.2.7"}
    assert [row["outcome"] for row in noted if row["step"] == "ended"] == [201, 409, 200]
    assert [row["outcome"] for row in noted if row["step"] == "refused"] == [403, 403, 403]
    assert wrong(path) == []
    text = path.read_text()
    assert not any(secret in text for secret in (*KEYS.values(), KEY, '"members"', "fanout_per_s"))


async def test_a_wrong_key_is_noted_and_a_failed_change_too(api: Any) -> None:
    call, path, _ = api
    assert (await call("POST", f"{BASE}/groups", "guess", json={})).status_code == 401
    assert (await call("GET", f"{BASE}/rules", None)).status_code == 401
    assert (await call("DELETE", f"{BASE}/groups/none", KEY)).status_code == 404
    assert [(row["step"], row.get("outcome")) for row in rows(path)] == [
        ("refused", 401),
        ("refused", 401),
        ("begun", None),
        ("ended", 404),
    ]
    assert "guess" not in path.read_text()


async def test_what_cannot_be_noted_is_not_done(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail closed: a full disk stops changes; reading goes on."""
    call, _, log = api

    def full(_: bytes) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(log, "_write", full)
    answer = await call("POST", f"{BASE}/groups", KEY, json={"conversation_id": "room", "members": ["ann"]})
    assert answer.status_code == 503
    assert answer.json()["temporary"]
    assert (await call("GET", f"{BASE}/groups/room", KEY)).status_code == 404  # it was not made
    with pytest.raises(StoreUnavailable):
        await log.begin(ACTION)
    await asyncio.sleep(0)
