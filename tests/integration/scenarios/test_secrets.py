"""What a running stack shows to who looks at its processes and logs: neither a secret nor a message."""

import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tests.support.exposure import descendants, in_arguments, in_files
from tests.support.stack import StackProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
BODY = "only-for-ben-4711"


def test_secrets_and_messages_are_in_no_argument_and_no_log(whole_stack: StackProcess) -> None:
    """`ps` and the logs of every role after a message, a refused token and a refused key."""
    client, state = whole_stack.client, whole_stack.state_dir
    command = [sys.executable, "-m", "qim_streams.cli", "send", "--state-dir", str(state)]
    said = subprocess.run(
        [*command, "--user", "ann.x", "--to", "ben.x", BODY], check=True, capture_output=True, text=True
    )
    assert "#1" in said.stdout
    refused = subprocess.run(
        [*command, "--user", "ann.x", "--to", "ben.x", "x"],
        env=whole_stack.environment | {"QIM_TOKEN": "not-a-token-0815"},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    kept = json.loads((state / "secrets.json").read_text())
    urls = json.loads((state / "client.json").read_text())
    passwords = {str(urlsplit(urls[name]).password) for name in ("redis_url", "redis_admin_url")}
    assert len(passwords) == 2  # the roles' is not the operator's
    secrets = {*kept.values(), client["jwt_secret"], client["admin_api_key"], *passwords, "not-a-token-0815"}
    pids = descendants(whole_stack.pid)
    assert len(pids) > len(whole_stack.status().roles)
    assert in_arguments(pids, secrets) == []
    assert in_files(state / "log", {*secrets, BODY}) == []  # elsewhere .log files are those of databases
    assert in_files(state, secrets, "*.jsonl") == []
    assert (state / "secrets.json").stat().st_mode & 0o077 == 0
    assert (state / "client.json").stat().st_mode & 0o077 == 0
