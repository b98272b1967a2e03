"""Two tabs that chat through the JSON subprotocol, in a real browser. Spec: §6, §7, §9."""

import re
from typing import Any

from tests.integration.console.browsing import Browser, Tab
from tests.integration.console.conftest import TENANT, World

NASTY = "<img src=x onerror=alert(1)> & “quotes” 😀"


def online(tab: Tab) -> None:
    """Wait until a tab is signed on and caught up."""
    tab.until("() => document.querySelector('.page-head [role=status]')?.textContent === 'online'")


def say(tab: Tab, words: str) -> None:
    """Write and send."""
    tab.page.get_by_label("Message", exact=True).fill(words)
    tab.page.get_by_role("button", name="Send").click()


def said(tab: Tab) -> list[str]:
    """The bubbles of a tab, without their times."""
    found: list[Any] = tab.page.locator(".msg:not(.pending)").evaluate_all(
        "all => all.map((one) => [...one.childNodes].filter((node) => node.nodeType === 3)"
        ".map((node) => node.data).join(''))"
    )
    return [str(one) for one in found]


def hears(tab: Tab, words: str, count: int) -> None:
    """Wait until a message is there and `count` bubbles are."""
    tab.until(
        "([words, count]) => { const all = [...document.querySelectorAll('.msg:not(.pending)')];"
        " return all.length === count && all.some((one) => one.textContent.includes(words)); }",
        [words, count],
    )


def test_two_tabs_chat(chromium: Browser) -> None:
    """What one writes the other sees, once and in order, as text; a reload shows the same and goes on."""
    with chromium.tab() as first, chromium.tab() as second:
        first.go(f"chat#tenant={TENANT}&user=tab-a&with=tab-b")
        second.go(f"chat#tenant={TENANT}&user=tab-b&with=tab-a")
        online(first)
        online(second)
        say(first, "hello b")
        hears(second, "hello b", 1)
        say(second, "hello a")
        hears(first, "hello a", 2)
        say(first, NASTY)
        hears(second, "onerror", 3)
        for number in range(5):
            say(first, f"number {number}")
        hears(second, "number 4", 8)
        expected = ["hello b", "hello a", NASTY, *(f"number {number}" for number in range(5))]
        assert said(first) == said(second) == expected
        assert second.page.locator(".msg img").count() == 0
        second.page.reload()
        online(second)
        hears(second, "number 4", 8)
        assert said(second) == expected
        say(first, "after the reload")
        hears(second, "after the reload", 9)
        for tab in (first, second):
            assert not tab.wrong
            assert not [url for url in tab.urls if re.search(r"eyJ|token=|key=", url)], "no token in a URL"


def test_what_comes_while_nobody_looks_is_unread_and_then_read(chromium: Browser, world: World) -> None:
    ben = world.person("chat-ben")
    receipt = world.run(ben.send(b"are you there?", to_user_id="chat-ann"))
    with chromium.tab() as tab:
        tab.go(f"chat#tenant={TENANT}&user=chat-ann")
        online(tab)
        tab.sees("1 new")
        tab.page.get_by_role("button", name="chat-ben").click()
        tab.sees("are you there?", within=".log")
        tab.until("() => !document.querySelector('.chat-list').textContent.includes('new')")
        path = f"tenants/{TENANT}/users/chat-ann/sessions"
        (row,) = world.api.get(path).json()["sessions"]
        assert (row["unread"], row["read_seq"]) == (0, receipt.conversation_seq)
        assert not tab.wrong


def test_a_line_that_breaks_comes_back_and_loses_nothing(chromium: Browser, world: World) -> None:
    """Offline for a while: what was written meanwhile is sent once, what was said comes, each once."""
    ben = world.person("line-ben")
    with chromium.tab() as tab:
        tab.go(f"chat#tenant={TENANT}&user=line-ann&with=line-ben")
        online(tab)
        say(tab, "before")
        hears(tab, "before", 1)
        tab.page.evaluate("() => globalThis.dispatchEvent(new Event('offline'))")
        tab.page.context.set_offline(True)
        tab.page.evaluate("() => document.querySelector('main').dataset.probe = 'kept'")
        world.run(ben.send(b"while you were away", to_user_id="line-ann"))
        say(tab, "written offline")
        tab.page.context.set_offline(False)
        hears(tab, "written offline", 3)
        hears(tab, "while you were away", 3)
        assert sorted(said(tab)) == ["before", "while you were away", "written offline"]


def test_without_a_gateway_the_page_says_so(chromium: Browser) -> None:
    with chromium.tab() as tab:
        tab.page.route(
            re.compile(r"/v1/gateways$"),
            lambda route: route.fulfill(status=200, content_type="application/json", body='{"urls": []}'),
        )
        tab.go(f"chat#tenant={TENANT}&user=ann&with=ben")
        tab.sees("No gateway serves now.")
