"""The JavaScript client against a scripted server, in Node.js: the rules of the SDK. Spec: §6, §7, §8.

Without Node.js the rules are proved only as far as the browser tests use them (`tests/integration/console`).
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qim_streams.console import assets

RULES = Path(__file__).parent / "client_rules.mjs"
CLIENT = Path(assets.__file__).parent / "static" / "qim-client.js"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no Node.js: the rules of the JavaScript client stay unproved here")
def test_the_rules_of_the_client() -> None:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--test", "--test-reporter=tap", str(RULES)],
        env=os.environ | {"QIM_TEST_CLIENT": str(CLIENT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "# fail 0" in done.stdout
    assert "# pass 24" in done.stdout, "every test ran"
