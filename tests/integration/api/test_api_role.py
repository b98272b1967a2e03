"""``qim api`` as a process, with a real writer behind it: what it changes is there for everybody.

Also the commands that look at the same servers: ``qim topics``, ``qim tables``, ``qim trace``.
Spec: §1, §4.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from qim_streams import hlc
from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.process import child_env, start_child
from qim_streams.embedded.stack import EmbeddedStack
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.redis_tier import connect
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.settings import Settings
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.integration
KEY, SECRET = "k" * 40, "s" * 40
BASE = "/v1/tenants/acme"
TRIES_MAX = 20


class Patient(httpx.HTTPTransport):
    """Does what an answer 503 of the API asks for: the same again a little later."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """As the class says, except for the question whether it is ready."""
        for _ in range(TRIES_MAX):
            answer = super().handle_request(request)
            if answer.status_code != 503 or request.url.path == "/readyz":
                break
            answer.read()
            time.sleep(0.5)  # the retry_after_ms of the answer
        return answer


class Roles:
    """Servers, a writer and an API; and the command line in the same environment."""

    def __init__(self, directory: Path, stack: EmbeddedStack) -> None:
        (self.port,) = free_ports(1)
        self.environment = {
            "QIM_BROKERS": stack.brokers,
            "QIM_REDIS_URL": stack.redis_url,
            "QIM_STATE_DIR": str(directory / "roles"),
            "QIM_ARCHIVE_ROCKSDB_DIR": str(directory / "archive"),
            "QIM_OUTBOX_PARTITIONS": "4",
            "QIM_MAILBOX_SHARDS": "4",
            "QIM_INTERNAL_SECRET": SECRET,
            "QIM_JWT_SECRET": SECRET,
            "QIM_ADMIN_API_KEY": KEY,
            "QIM_API_PORT": str(self.port),
        }
        self._directory = directory
        self._children = []
        applied = self.command("topics", "apply")
        assert applied.returncode == 0, applied.stdout + applied.stderr
        for role in ("writer", "api"):
            self._children.append(
                start_child(
                    role,
                    [sys.executable, "-m", "qim_streams.cli", role],
                    env=child_env(self.environment, settings=False),
                    log_path=directory / f"{role}.log",
                )
            )

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """``qim`` with these arguments."""
        passed = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
        return subprocess.run(
            [sys.executable, "-m", "qim_streams.cli", *arguments],
            env=passed | self.environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def session(self) -> httpx.Client:
        """A client with the key."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=20,
            transport=Patient(),
        )

    def ready(self) -> bool:
        """Whether the API says so; a role that ended fails at once."""
        for child in self._children:
            assert child.poll() is None, child.log_path.read_text()[-3000:]
        try:
            with self.session() as session:
                return session.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> list[int]:
        """Stop the roles; their exit codes."""
        return [child.stop(40) for child in reversed(self._children)]


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    """Everything running; each role must stop cleanly at the end."""
    directory = tmp_path_factory.mktemp("api")
    with EmbeddedStack(directory / "stack", quick=True) as stack:
        roles = Roles(directory, stack)
        try:
            eventually_sync(roles.ready, 60, "the API to be ready")
            yield roles
        finally:
            codes = roles.stop()
        assert codes == [0, 0]


@pytest.fixture
def api(roles: Roles) -> Iterator[httpx.Client]:
    """A client of the running API."""
    with roles.session() as session:
        yield session


def done(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    """The body of a good answer."""
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def listed(roles: Roles, *users: str) -> dict[str, list[str]]:
    """The conversations in the lists of users, as they stand."""

    async def read() -> dict[str, list[str]]:
        client = connect(Settings(redis_url=SecretStr(roles.environment["QIM_REDIS_URL"])))
        try:
            ordinals = await RedisOrdinalDirectory(client, ScriptPipe(client)).find("acme", users)
            states, found = RedisUserStates(client, lambda: 0), {}
            for user, ordinal in zip(users, ordinals, strict=True):
                assert ordinal is not None
                page = await states.page(SessionUser("acme", user, ordinal), None, 10)
                found[user] = [row.conversation_id for row in page.rows]
            return found
        finally:
            await client.aclose()

    return asyncio.run(read())


def test_who_enters_by_the_api_has_the_group_in_his_list_at_once(roles: Roles, api: httpx.Client) -> None:
    """Before anything is said in it: made with him, added, joined. The row says by itself who is a member."""
    group = {"conversation_id": "hall", "owner": "gil", "members": ["hal"], "join_policy": "open"}
    done(api.post(f"{BASE}/groups", json=group), 201)
    assert listed(roles, "gil", "hal") == {"gil": ["hall"], "hal": ["hall"]}
    done(api.post(f"{BASE}/groups/hall/members", json={"user_ids": ["ida"]}))
    assert listed(roles, "ida") == {"ida": ["hall"]}
    done(api.post(f"{BASE}/groups/hall/join", json={"user_id": "jon"}))
    assert listed(roles, "jon") == {"jon": ["hall"]}


def test_a_group_through_the_writer(api: httpx.Client) -> None:
    group = {"conversation_id": "room", "owner": "ann", "members": ["bob", "cat"], "name": "Room"}
    made = done(api.post(f"{BASE}/groups", json=group), 201)
    assert (made["members_active"], made["kind"], made["last_seq"]) == (3, "group", 0)
    repeated = done(api.post(f"{BASE}/groups", json=group | {"name": "Other"}), 201)
    assert repeated == made, "a repeat by the same owner changes nothing"
    assert api.post(f"{BASE}/groups", json=group | {"owner": "eve"}).status_code == 409
    done(api.post(f"{BASE}/groups/room/members", json={"user_ids": ["dan", "eve"]}))
    done(api.put(f"{BASE}/groups/room/members/bob/role", json={"role": "admin"}))
    done(api.delete(f"{BASE}/groups/room/members/eve"))
    done(api.post(f"{BASE}/groups/room/leave", json={"user_id": "cat"}))
    done(api.patch(f"{BASE}/groups/room", json={"join_policy": "open"}))
    done(api.post(f"{BASE}/groups/room/join", json={"user_id": "fay"}))
    page = done(api.get(f"{BASE}/groups/room", params={"limit": 2}))
    assert [(one["user_id"], one["role"]) for one in page["members"]] == [("ann", "owner"), ("bob", "admin")]
    assert page["next_user_id"] == "bob"
    rest = done(api.get(f"{BASE}/groups/room", params={"after_user_id": "bob"}))
    assert [one["user_id"] for one in rest["members"]] == ["dan", "fay"]
    head = done(api.get(f"{BASE}/conversations/room"))
    assert (head["members_active"], head["name"], head["join_policy"]) == (4, "Room", "open")
    assert done(api.delete(f"{BASE}/groups/room"))["dismissed"] is True
    refused = api.post(f"{BASE}/groups/room/members", json={"user_ids": ["zoe"]})
    assert (refused.status_code, refused.json()["name"]) == (409, "DISMISSED")


def test_groups_without_an_id_are_different_ones(api: httpx.Client) -> None:
    ids = {
        done(api.post(f"{BASE}/groups", json={"members": ["ann"]}), 201)["conversation_id"] for _ in range(3)
    }
    assert len(ids) == 3


def test_a_direct_chat_that_nobody_has_written_in(api: httpx.Client) -> None:
    found = done(api.get(f"{BASE}/direct", params={"user_id": "ann", "peer_id": "bob"}))
    assert found["conversation_id"].startswith("d.")
    assert found["conversation"] is None


def test_a_token_that_the_gateways_verifier_accepts(api: httpx.Client) -> None:
    from qim_streams.gateway.tokens import TokenVerifier
    from qim_streams.settings import Settings

    minted = done(api.post(f"{BASE}/tokens", json={"user_id": "ann", "ttl_s": 60}), 201)
    claims = TokenVerifier.from_settings(Settings(jwt_secret=SECRET)).verify(minted["access_token"])
    assert tuple(claims) == ("acme", "ann", minted["expires_at"])


def test_rules_of_a_tenant_are_kept(api: httpx.Client) -> None:
    """Only its own; replaced as a whole; null is the default."""
    unset = {"fanout_per_s": None, "multi_login": None}
    assert done(api.get(f"{BASE}/rules")) == unset
    rules = {"fanout_per_s": 5_000, "multi_login": "platform"}
    assert done(api.put(f"{BASE}/rules", json=rules)) == rules
    assert done(api.get(f"{BASE}/rules")) == rules
    assert done(api.get("/v1/tenants/other/rules")) == unset
    done(api.put(f"{BASE}/rules", json={}))
    assert done(api.get(f"{BASE}/rules")) == unset


def test_a_trace_of_a_message_that_does_not_exist(api: httpx.Client) -> None:
    message = hlc.encode(1_700_000_000_000, 0, 7).hex()
    answer = api.get(f"{BASE}/messages/{message}/trace")
    assert (answer.status_code, answer.json()["name"]) == (404, "MESSAGE_NOT_FOUND")


def test_the_key_is_needed(roles: Roles) -> None:
    answer = httpx.get(f"http://127.0.0.1:{roles.port}{BASE}/groups/room")
    assert answer.status_code == 401


def test_the_commands_see_the_same_servers(roles: Roles) -> None:
    assert "topics are as declared" in roles.command("topics", "check").stdout
    tables = json.loads(roles.command("tables", "--json").stdout)
    assert (len(tables["outbox"]), len(tables["shards"])) == (4, 4)
    trace = roles.command("trace", "ab" * 16, "--tenant", "acme")
    assert trace.returncode == 1
    assert "not in qim.outbox.v1" in trace.stdout
    other = subprocess.run(
        [sys.executable, "-m", "qim_streams.cli", "topics", "check"],
        env=os.environ | roles.environment | {"QIM_OUTBOX_PARTITIONS": "8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert "qim.outbox.v1: has 4 partitions, declared are 8" in other.stderr
