"""What a healthy stack says of itself: by `qim status`, by pages and by files, in one form."""

import json
import urllib.request

import pytest

from qim_streams.streaming.spec import HEALTH_FILE
from tests.support.stack import StackProcess
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_nobody_has_a_reason(whole_stack: StackProcess) -> None:
    """E2: ready without a reason everywhere; workers without a port say so in a file."""
    eventually_sync(
        lambda: not any(role.reasons for role in whole_stack.status().roles), 60.0, "all roles to serve"
    )
    asked = []
    for role in whole_stack.status().roles:
        if "port" in role.ports and role.name in ("gateway", "writer", "api"):
            url = f"http://127.0.0.1:{role.ports['port']}/readyz"
            with urllib.request.urlopen(url, timeout=20) as answer:
                said = json.load(answer)
        elif (file := whole_stack.state_dir / "roles" / role.name / HEALTH_FILE).exists():
            said = json.loads(file.read_bytes())
            assert said["pid"] == role.pid
        else:
            continue
        asked.append(role.name)
        assert (said["ready"], said["reasons"]) == (True, []), role.name
    assert {"gateway", "writer", "api", "fanout", "mailbox", "archiver", "qsession"} <= set(asked)
