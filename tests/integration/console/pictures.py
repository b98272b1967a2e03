"""Takes the pictures of the README: ``python -m tests.integration.console.pictures [DIRECTORY]``.

It starts a stack of its own, lets people talk, breaks a record on purpose, and photographs the pages.
"""

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from random import random

from qim_streams.client import QimClient
from qim_streams.streaming.appender import Appender
from tests.integration.console.browsing import Browser, Tab, browser, missing
from tests.support.stack import StackProcess

SIZE = {"width": 1200, "height": 720}
TENANT = "acme"


async def talk(client: dict[str, str], tokens: dict[str, str], rounds: int) -> tuple[str, str]:
    """People of a group and of direct chats; the id of the last message to the group, and the group."""
    people = [QimClient(client["gateway_url"], token, f"{user}-phone") for user, token in tokens.items()]
    await asyncio.gather(*(one.connect(90) for one in people))
    for number in range(rounds):
        for one in people:
            last = await one.send(f"news {number}".encode(), conversation_id="team")
        await asyncio.gather(*(people[0].send(b"hi", to_user_id=user) for user in list(tokens)[1:]))
    for one in people:
        await one.close()
    return last.message_id.hex(), last.conversation_id


class Talking:
    """People who go on talking while somebody looks; a loop of their own."""

    def __init__(self, client: dict[str, str], token: str) -> None:
        self._client, self._token, self._end = client, token, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._talk()), daemon=True)

    def __enter__(self) -> "Talking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)

    async def _talk(self) -> None:
        async with QimClient(self._client["gateway_url"], self._token, "ann-tablet") as ann:
            while not self._end.is_set():
                await ann.send(b"more news", conversation_id="team")
                await asyncio.sleep(0.15 + 0.1 * random())


def prepare(stack: StackProcess) -> tuple[str, str, str]:
    """A tenant with something in it; a message of its group, and a token of a member."""
    import httpx

    client = stack.client
    headers = {"Authorization": f"Bearer {client['admin_api_key']}"}
    with httpx.Client(
        base_url=f"{client['admin_url']}/v1/tenants/{TENANT}/", headers=headers, timeout=60
    ) as api:
        users = ["ann", "ben", "cleo", "dora", "eli", "fay"]
        body = {"conversation_id": "team", "name": "The team", "owner": "ann", "members": users}
        api.post("groups", json=body).raise_for_status()
        tokens = {user: api.post("tokens", json={"user_id": user}).json()["access_token"] for user in users}
    for topic, partition, words in (
        ("qim.dispatch.v1", 1, b"not a dispatch"),
        ("qim.dispatch.v1", 2, b"nor this"),
        ("qim.outbox.v1", 0, b"not a message"),
    ):
        Appender(client["brokers"], "qim-pictures").append(topic, partition, b"broken", words)
    return (*asyncio.run(talk(client, tokens, 8)), tokens["ann"])


def photograph_topology(opened: Browser, directory: Path) -> None:
    """The pipeline at work, for long enough to have a line."""
    with opened.tab(**SIZE) as tab:
        tab.go("#/topology")
        tab.page.wait_for_timeout(45_000)
        tab.page.screenshot(path=directory / "topology.png")


def photograph(opened: Browser, message: str, conversation: str, directory: Path) -> None:
    """Every picture."""

    def take(tab: Tab, name: str) -> None:
        tab.page.screenshot(path=directory / f"{name}.png")

    with opened.tab(**SIZE, dark=True) as tab:
        tab.go("#/tables")
        tab.until("() => document.querySelectorAll('.lanes').length > 3")
        take(tab, "lanes")
    with opened.tab(**SIZE) as tab:
        tab.go(f"#/trace?tenant={TENANT}&message={message}&conversation={conversation}")
        tab.sees("ARCHIVED")
        take(tab, "trace")
    with opened.tab(**SIZE, dark=True) as tab:
        tab.go("#/letters")
        tab.sees("Give back")
        take(tab, "letters")
    with opened.tab(**SIZE) as first, opened.tab(**SIZE) as second:
        for tab, user, peer in ((first, "gus", "hal"), (second, "hal", "gus")):
            tab.go(f"chat#tenant={TENANT}&user={user}&with={peer}")
            tab.sees("online", within=".page-head")
        for tab, words in (
            (first, "Is the pipeline up?"),
            (second, "It is. This went through gateway, writer, fan-out and mailbox."),
            (first, "And back, in order."),
        ):
            tab.page.get_by_label("Message", exact=True).fill(words)
            tab.page.keyboard.press("Enter")
            first.sees(words, within=".log")
            second.sees(words, within=".log")
        take(first, "chat")


def main() -> None:
    """Take them."""
    why = missing()
    if why is not None:
        sys.exit(why)
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state, StackProcess(Path(state) / "stack", "--web") as stack:
        message, conversation, token = prepare(stack)
        with browser(stack.client["admin_url"], stack.client["admin_api_key"]) as opened:
            with Talking(stack.client, token):
                photograph_topology(opened, directory)
            photograph(opened, message, conversation, directory)


if __name__ == "__main__":
    main()
