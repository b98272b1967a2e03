"""What the pages show as Python is run as it stands, against a real stack."""

import asyncio
from pathlib import Path

import pytest

from qim_streams.client import MessageReceived
from tests.integration.scenarios.conftest import DELIVERED_S, Cast
from tests.support.doc_code import as_function, defined_by, python_blocks
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def test_the_example_of_the_sdk(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It posts, sends, and prints its own messages and those of others until it is ended."""
    monkeypatch.chdir(tmp_path)  # where its store is made
    address, ann, eve = cast.stack.address(), cast.person("ann"), cast.person("eve")
    (code,) = python_blocks("docs/sdk.md")
    running = cast.background(defined_by(code)["main"](address.require_url(), address.token(ann.user_id)))
    talker = await eve.online()
    await talker.send(b"good morning", to_user_id=ann.user_id)
    said = ""

    def all_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return running.done() or all(f"b'{text}'" in said for text in ("hello", "again", "good morning"))

    await eventually(all_said, DELIVERED_S)
    assert not running.done(), running.exception()
    assert f"{eve.user_id} b'good morning'" in said
    assert (tmp_path / "phone-1.db").exists()


async def test_the_example_of_the_first_page(cast: Cast) -> None:
    """It sends and takes what comes."""
    address, dora = cast.stack.address(), cast.person("dora")
    (code,) = python_blocks("README.md")
    taken: list[object] = []
    example = as_function(code.replace("...", "take(delivery)"), "gateway_url", "token", "take")
    running = cast.background(example(address.require_url(), address.token(dora.user_id), taken.append))
    await eventually(
        lambda: running.done() or any(isinstance(one, MessageReceived) for one in taken), DELIVERED_S
    )
    assert not running.done(), running.exception()
    running.cancel()
    await asyncio.wait([running])
