"""`qim token|send|tail|group|chat` and how they find a stack, against a scripted server in a thread."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from scripted_server import ScriptedServer

from qim_streams.cli import main
from qim_streams.cli.chat import open_store
from qim_streams.client import SqliteStore
from qim_streams.client.discovery import StackAddress, discover
from qim_streams.errors import ConfigError
from qim_streams.gateway.tokens import TokenVerifier
from qim_streams.settings import Settings
from tests.support.waiting import eventually_sync

SECRET = "s" * 40


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server whose loop runs in a thread, because a command has a loop of its own."""
    one = ScriptedServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(one.start(), loop).result(5)
    yield one
    asyncio.run_coroutine_threadsafe(one.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where chats keep what they remember when no stack's directory is known."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data" / "qim" / "chat"


def qim(server: ScriptedServer, user: str, *args: str, text: str | None = None) -> Result:
    env = {"QIM_GATEWAY_URL": server.url, "QIM_TENANT": "t", "QIM_TOKEN": user, "QIM_STATE_DIR": None}
    return CliRunner().invoke(main, [*args, "--user", user], env=env, input=text)


def test_send_and_tail(server: ScriptedServer) -> None:
    sent = qim(server, "ann", "send", "--to", "bob", "--id", "m-1", "hello \x1b[31mred")
    assert sent.exit_code == 0, sent.output
    again = qim(server, "ann", "send", "--to", "bob", "--id", "m-1", "hello \x1b[31mred")
    assert again.output == sent.output
    tail = qim(server, "bob", "tail", "--from-start", "--count", "1")
    assert tail.exit_code == 0, tail.output
    assert "ann: hello \N{REPLACEMENT CHARACTER}[31mred" in tail.output
    assert "\x1b" not in tail.output
    as_json = qim(server, "bob", "tail", "--from-start", "--count", "1", "--json")
    assert json.loads(as_json.output)["message"]["sender_id"] == "ann"


def test_send_reads_standard_input_and_refusals_are_one_line(server: ScriptedServer) -> None:
    assert qim(server, "ann", "send", "--to", "bob", text="from a pipe\n").exit_code == 0
    assert server.log["bob"][0].message.body == b"from a pipe\n"
    server.faults.refuse_sends = [("NOT_MEMBER", None)]
    refused = qim(server, "ann", "send", "--group", "g", "x")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "NOT_MEMBER" in refused.output
    both = qim(server, "ann", "send", "x")
    assert both.exit_code == 1
    assert "either --to USER or --group" in both.output


def test_group_commands(server: ScriptedServer) -> None:
    made = qim(server, "ann", "group", "create", "g-1", "--member", "bob")
    assert made.output.startswith("g-1 ''" + ": 2 members"), made.output
    assert "3 members" in qim(server, "ann", "group", "add", "g-1", "eve").output
    assert "2 members" in qim(server, "ann", "group", "remove", "g-1", "bob").output
    shown = qim(server, "ann", "group", "show", "g-1")
    assert "eve" in shown.output
    assert "bob" not in shown.output
    again = qim(server, "ann", "group", "create", "g-1")
    assert again.exit_code == 1
    assert "CONVERSATION_EXISTS" in again.output


def test_chat_shows_history_sends_lines_and_ends(server: ScriptedServer) -> None:
    assert qim(server, "bob", "send", "--to", "ann", "are you there?").exit_code == 0
    said = qim(server, "ann", "chat", "--to", "bob", text="yes\n/who\n/help\n/nonsense\n/quit\nnever sent\n")
    assert said.exit_code == 0, said.output
    for part in ("bob: are you there?", "you: yes  [sent]", "-- ann and bob", "unknown command /nonsense"):
        assert part in said.output
    assert [event.message.body for event in server.log["bob"]] == [b"are you there?", b"yes"]


def test_chat_remembers_its_device_in_a_file_of_its_own(server: ScriptedServer, data_home: Path) -> None:
    """The second time: the earlier lines, then only what was missed; nothing is there twice."""
    assert qim(server, "bob", "send", "--to", "ann", "one").exit_code == 0
    first = qim(server, "ann", "chat", "--to", "bob", text="two\n")
    assert first.output.count("bob: one") == first.output.count("you: two") == 1, first.output
    (path,) = data_home.glob("*.db")
    assert path.name.startswith("ann.terminal.")
    assert qim(server, "bob", "send", "--to", "ann", "three").exit_code == 0
    second = qim(server, "ann", "chat", "--to", "bob", text="/quit\n").output
    lines = [line for line in second.splitlines() if "#" in line]
    assert [line.split(": ")[1] for line in lines] == ["one", "two  [sent]", "three"], second
    assert second.index("you: two") < second.index("-- connecting") < second.index("bob: three")
    assert "-- syncing: about 2 messages" in second  # the own one is not covered by the cursor yet
    with closing(SqliteStore(path)):
        busy = qim(server, "ann", "chat", "--to", "bob")
        assert (busy.exit_code, busy.output.count("\n")) == (1, 1)
        assert "locked" in busy.output
    in_memory = qim(server, "ann", "chat", "--to", "bob", "--store", "memory", text="/quit\n")
    assert in_memory.exit_code == 0, in_memory.output


def test_chat_sends_next_time_what_had_no_receipt(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the ack is lost and the terminal closed; the next chat repeats it and shows it once."""
    monkeypatch.setattr("qim_streams.cli.chat.FINISH_S", 0.3)
    store = str(tmp_path / "mine.db")
    server.faults.drop_acks = 1
    first = qim(server, "ann", "chat", "--to", "bob", "--store", store, text="kept\n")
    assert "-- 1 messages have no receipt: they are sent next time" in first.output
    second = qim(server, "ann", "chat", "--to", "bob", "--store", store, text="more\n")
    assert "-- 1 messages of last time wait to be sent" in second.output
    assert second.output.count("you: kept  [sent]") == second.output.count("you: more  [sent]") == 1
    assert [event.message.body for event in server.log["bob"]] == [b"kept", b"more"]
    server.faults.refuse_sends = [("NOT_MEMBER", None)]
    refused = qim(server, "ann", "chat", "--to", "bob", "--store", store, text="no\n")
    assert "-- not sent: no (NOT_MEMBER: no)" in refused.output
    nowhere = qim(server, "ann", "chat", "--to", "bob", "--store", str(tmp_path / "no" / "x.db"))
    assert (nowhere.exit_code, nowhere.output.count("\n")) == (1, 1)


def test_the_usual_store_belongs_to_one_stack(tmp_path: Path) -> None:
    """A new stack begins its numbers anew: what is kept of another one would hide its messages."""
    places = set()
    for home, url in (("a", "ws://x"), ("b", "ws://x"), ("", "ws://x"), ("", "ws://y")):
        address = StackAddress(gateway_url=url, tenant="t", home=home and str(tmp_path / home))
        store = open_store(None, address, "ann", "terminal")
        assert isinstance(store, SqliteStore)
        places.add(store.path)
        store.close()
    assert len(places) == 4
    assert (tmp_path / "a" / "chat").is_dir()


def test_chat_in_a_group_and_bad_names(server: ScriptedServer) -> None:
    server.members["g-1"] = ["ann", "bob"]
    said = qim(server, "ann", "chat", "--group", "g-1", text="hi all\n/who\n")
    assert "-- ann (member), bob (member)" in said.output
    assert server.log["bob"][0].message.body == b"hi all"
    assert "not an id" in qim(server, "ann", "chat", "--group", "../x").output


@pytest.mark.parametrize("terminal", [True, False])
def test_chat_reads_a_terminal_or_a_pipe_to_its_end(server: ScriptedServer, terminal: bool) -> None:
    env = {
        **os.environ,
        "QIM_GATEWAY_URL": server.url,
        "QIM_TENANT": "t",
        "QIM_TOKEN": "ann",
        "QIM_STATE_DIR": "/none",
    }
    near, far = pty.openpty() if terminal else os.pipe()[::-1]
    command = [sys.executable, "-m", "qim_streams.cli", "chat", "--user", "ann", "--to", "bob"]
    with subprocess.Popen(
        command, env=env, stdin=far, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as chat:
        os.close(far)
        os.write(near, "grüß dich\n".encode())
        eventually_sync(lambda: len(server.log["bob"]) == 1)
        if terminal:
            os.write(near, b"\x04")
        else:
            os.close(near)
        out, _ = chat.communicate(timeout=20)
    if terminal:
        os.close(near)
    assert chat.returncode == 0, out
    assert "you: grüß dich  [sent]" in out.decode()
    assert server.log["bob"][0].message.body == "grüß dich".encode()


def test_terminal_answers_are_one_line(server: ScriptedServer) -> None:
    server.faults.refuse_auth = "BAD_TOKEN"
    result = qim(server, "ann", "tail")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "BAD_TOKEN" in result.output


# -- finding a stack


def stack_file(tmp_path: Path, **values: object) -> Path:
    content = {"gateway_url": "ws://127.0.0.1:1/ws", "tenant": "demo", "jwt_secret": SECRET, "brokers": "x"}
    (tmp_path / "client.json").write_text(json.dumps(content | values))
    return tmp_path


def test_discovery_reads_the_file_and_options_win(tmp_path: Path) -> None:
    found = discover(stack_file(tmp_path), tenant="other", gateway_url=None)
    assert (found.gateway_url, found.tenant, found.jwt_secret) == ("ws://127.0.0.1:1/ws", "other", SECRET)
    assert SECRET not in repr(found)


def test_discovery_errors_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="qim up --state-dir"):
        discover(tmp_path / "none")
    assert discover(tmp_path / "none", gateway_url="ws://x").gateway_url == "ws://x"
    with pytest.raises(ConfigError, match="tenant is not a text"):
        discover(stack_file(tmp_path, tenant=7))
    (tmp_path / "client.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        discover(tmp_path)
    with pytest.raises(ConfigError, match="--url"):
        StackAddress().require_url()
    with pytest.raises(ConfigError, match="--tenant"):
        StackAddress(jwt_secret=SECRET).token("ann")
    with pytest.raises(ConfigError, match="not an id"):
        StackAddress(jwt_secret=SECRET, tenant="demo").token("no spaces")


def test_token_command_mints_what_the_gateway_accepts(tmp_path: Path) -> None:
    state = str(stack_file(tmp_path))
    result = CliRunner().invoke(main, ["token", "--user", "ann", "--state-dir", state, "--ttl", "60"])
    assert result.exit_code == 0, result.output
    verifier = TokenVerifier.from_settings(Settings(jwt_secret=SECRET))
    claims = verifier.verify(result.output.strip())
    assert (claims.tenant_id, claims.user_id) == ("demo", "ann")
    missing = CliRunner().invoke(main, ["token", "--user", "ann", "--state-dir", str(tmp_path / "none")])
    assert (missing.exit_code, missing.output.count("\n")) == (1, 1)


def test_the_secret_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    args = ["token", "--user", "ann", "--tenant", "t", "--url", "ws://x", "--jwt-secret-file", str(path)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    bad = CliRunner().invoke(main, [*args[:-1], str(tmp_path / "none")])
    assert bad.exit_code == 1
    assert "--jwt-secret-file" in bad.output
