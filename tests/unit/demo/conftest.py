"""The scripted server of the client's tests serves the demonstration's tests, too."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "client" / "scripted_server.py"


@pytest.fixture
async def server() -> AsyncIterator[Any]:
    """A running server; its token is the user's id."""
    spec = importlib.util.spec_from_file_location("scripted_server", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get("scripted_server") or importlib.util.module_from_spec(spec)
    if "scripted_server" not in sys.modules:
        sys.modules["scripted_server"] = module
        spec.loader.exec_module(module)
    one = module.ScriptedServer()
    await one.start()
    yield one
    await one.stop()
