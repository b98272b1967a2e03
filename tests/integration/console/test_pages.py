"""The console in a real browser: what is on the screen of each page. Spec: §11, §13.

What a page does with answers that a healthy stack does not give (thousands of rows, silent workers, errors)
is seen by answering in the server's place.
"""

import json
import re
from typing import Any

import pytest

from qim_streams.streaming.appender import Appender
from tests.integration.console.browsing import KEY, Browser, Tab
from tests.integration.console.conftest import TENANT, World

PAGES = [
    "#/topology",
    "#/tables",
    "#/tables?tab=dispatch&partition=0",
    "#/tables?tab=presence&partition=0",
    "#/shards",
    "#/shards?shard=0",
    "#/trace",
    "#/letters",
    f"#/users?tenant={TENANT}",
    f"#/users?tenant={TENANT}&user=ann",
    f"#/conversations?tenant={TENANT}",
    f"#/conversations?tenant={TENANT}&conversation=c-team",
    f"#/groups?tenant={TENANT}",
    f"#/rooms?tenant={TENANT}",
    "#/nowhere",
    f"chat#tenant={TENANT}&user=ann",
]


def answered(tab: Tab, path: str, body: Any, status: int = 200) -> None:
    """Answer requests of `path` in the server's place."""
    tab.page.route(
        re.compile(rf"/v1/{path}(\?|$)"),
        lambda route: route.fulfill(status=status, content_type="application/json", body=json.dumps(body)),
    )


def test_signing_in_and_out(chromium: Browser) -> None:
    """The key opens the console, a wrong one does not; it is in no URL and leaves with the tab."""
    with chromium.tab(signed_in=False) as tab:
        tab.go("")
        assert tab.page.locator("nav a").count() == 0
        tab.page.get_by_label("Admin key").fill("wrong-key-of-somebody-else-entirely")
        tab.page.get_by_role("button", name="Sign in").click()
        tab.sees("The key is not the one of this API.")
        tab.page.get_by_label("Admin key").fill(chromium.key)
        tab.page.keyboard.press("Enter")
        tab.sees("Fan-out", within=".flow")
        assert not [url for url in tab.urls if chromium.key in url]
        assert tab.page.evaluate("localStorage.length") == 0
        assert tab.page.evaluate("document.cookie") == ""
        tab.page.get_by_role("button", name="Sign out").click()
        assert tab.page.evaluate(f"sessionStorage.getItem({json.dumps(KEY)})") is None
        tab.sees("It stays in this tab")
        assert not tab.wrong


def test_a_key_that_was_changed_leads_back_to_the_door(chromium: Browser) -> None:
    with chromium.tab() as tab:
        failure = {
            "code": 600,
            "name": "API_KEY_REQUIRED",
            "temporary": False,
            "detail": "send the key",
            "field": None,
        }
        answered(tab, "topology", failure, 401)
        tab.go("#/topology")
        tab.sees("it was changed")


def test_the_topology_lives(chromium: Browser, world: World) -> None:
    """Every stage is healthy; what people send is seen as a rate within a few looks."""
    with chromium.tab() as tab:
        tab.go("#/topology")
        for title in ("Gateway", "Writer", "Fan-out", "Mailbox", "Archiver", "Rooms"):
            tab.sees(title, within=".flow")
        tab.until(
            "() => [...document.querySelectorAll('.stage')].every((one) => one.classList.contains('ok'))"
        )
        moved = "() => parseFloat(document.querySelector('[data-stage=writer] b').textContent) > 0"
        for _ in range(20):
            world.run(world.ann.send(b"hello", conversation_id="c-team"))
            if tab.page.evaluate(moved):
                break
            tab.page.wait_for_timeout(500)
        tab.until(moved)
        tab.page.locator("[data-stage=mailbox]").focus()
        tab.page.keyboard.press("Enter")
        assert tab.page.locator("[data-stage=mailbox]").get_attribute("aria-expanded") == "true"
        tab.until(
            "() => document.querySelectorAll('[aria-label=Stage] [aria-label=Partitions] td').length > 30"
        )
        assert "mailbox-node-node-1-0" in tab.text("section[aria-label=Stage]")
        assert not tab.wrong


def test_a_stage_that_lags_is_named_with_the_reason(chromium: Browser) -> None:
    partition = {
        "partition": 3, "source": "qim.dispatch.v1", "end": 900, "done": 100, "in_per_s": 10.0,
        "done_per_s": 0.0, "lag_records": 800, "lag_s": 75.0, "owner": None, "epoch": 4, "health": "bad",
        "reason": "no worker has it, and 800 records wait",
    }  # fmt: skip
    stage = {
        "name": "mailbox", "title": "Mailbox", "health": "bad",
        "reasons": ["qim.dispatch.v1[3]: no worker has it"],
        "in_per_s": 10.0, "done_per_s": 0.0, "lag_records": 800, "lag_s": 75.0, "workers": [],
        "partitions_total": 16, "partitions_owned": 15,
        "partitions": [partition],
    }  # fmt: skip
    with chromium.tab() as tab:
        answered(
            tab,
            "topology",
            {"at_ms": 1, "window_s": 10, "stages": [stage], "problems": ["leases: no answer"]},
        )
        tab.go("#/topology?stage=mailbox")
        for text in ("fault", "1 min 15 s", "qim.dispatch.v1[3]: no worker has it", "leases: no answer"):
            tab.sees(text)


def test_lanes_are_a_strip_of_64_per_shard(chromium: Browser) -> None:
    with chromium.tab() as tab:
        tab.go("#/tables")
        tab.until("() => document.querySelectorAll('.lanes').length >= 4")
        counts = tab.page.eval_on_selector_all(".lanes", "all => all.map((one) => one.children.length)")
        assert set(counts) == {64}
        label = tab.page.locator(".lanes").first.get_attribute("aria-label")
        assert label is not None
        assert "64 lanes" in label
        assert not tab.wrong


def test_a_lane_that_stays_behind_is_seen(chromium: Browser) -> None:
    lanes = [500] * 64
    lanes[7], lanes[9] = 100, 495
    row = {"partition": 2, "key": "7700000002", "shard": 2, "covered": 100, "uniform": False, "lanes": lanes,
           "epoch": 5, "at_ms": 1_700_000_000_000, "worker": "http://w:1"}  # fmt: skip
    silent = [{"worker": "http://w:2", "why": "no answer within 2 s"}]
    with chromium.tab() as tab:
        answered(tab, "tables/lane_watermarks/rows", {
            "table": "lane_watermarks", "partition": None, "worker": None, "rows": [row], "next_from": None,
            "next_after": None, "served": {"http://w:1": [2]}, "unanswered": silent, "note": None,
        })  # fmt: skip
        tab.go("#/tables")
        tab.sees("w:2 does not answer")
        assert (
            tab.page.locator(".lanes").get_attribute("aria-label")
            == "2 of 64 lanes behind 500, the last one by 400"
        )
        assert tab.page.locator(".lanes i.b3").count() == 1
        assert tab.page.locator(".lanes i.b1").get_attribute("title") == "lane 9: 495"


def test_progress_and_presence_come_from_their_workers(chromium: Browser) -> None:
    with chromium.tab() as tab:
        tab.go("#/tables?tab=dispatch&partition=0")
        tab.sees("Served by")
        assert tab.rows("Pages of shard 0").count() >= 1
        tab.go(f"#/tables?tab=presence&tenant={TENANT}&user=ann")
        tab.sees("ann-phone")
        tab.sees("pushed to")
        assert not tab.wrong


def test_a_message_is_traced_through_all_levels(chromium: Browser, world: World) -> None:
    with chromium.tab() as tab:
        tab.go("#/trace")
        tab.page.get_by_label("Tenant").fill(TENANT)
        tab.page.get_by_label("Message id").fill(world.last.message_id.hex())
        tab.page.get_by_role("button", name="Trace").click()
        tab.until("() => document.querySelectorAll('.levels li').length >= 6")
        for level in ("COMMITTED", "DISPATCHED", "MAILBOXED", "PUSHED", "ARCHIVED"):
            assert "ok" in (tab.page.locator(f"[data-level={level}]").get_attribute("class") or ""), level
        assert "c-team" in tab.text()
        tab.page.get_by_label("Message id").fill("0" * 32)
        tab.page.get_by_role("button", name="Trace").click()
        tab.sees("Check tenant and id")
        assert not tab.wrong


def test_users_are_searched_and_paged(chromium: Browser) -> None:
    """Of some 900 users a page is in the document; each comes once; a part of an id finds them."""
    with chromium.tab() as tab:
        tab.go(f"#/users?tenant={TENANT}")
        rows = tab.rows("Users of")
        seen: set[str] = set()
        for page in range(1, 60):
            tab.sees(f"Page {page},")
            names = rows.locator("td:first-child").all_inner_texts()
            assert len(names) < 200
            assert not seen & set(names)
            seen |= set(names)
            following = tab.page.get_by_role("button", name="Next")
            if not following.count() or following.is_disabled():
                break
            following.click()
        assert {"ann", "ben", "user-0000", "user-0899"} <= seen
        assert len(seen) >= 902
        tab.page.get_by_placeholder("Part of a user id").fill("0899")
        tab.until("() => document.querySelectorAll('tbody tr').length === 1")
        tab.page.get_by_role("link", name="user-0899").click()
        tab.sees("The user has never signed on.")
        tab.sees("The <b>team</b>")
        assert not tab.wrong


def test_a_group_with_its_members_and_messages(chromium: Browser) -> None:
    """Names of users' making are text. Bodies are not shown."""
    with chromium.tab() as tab:
        tab.go(f"#/conversations?tenant={TENANT}&conversation=c-team")
        tab.sees("The <b>team</b>")
        tab.sees("Messages, the newest first")
        tab.settled()
        assert tab.page.locator("main b").count() == 0
        assert tab.rows("Members").count() == 25
        assert "hello" not in tab.text()
        tab.page.locator("a.mono").first.click()
        tab.sees("MAILBOXED")
        assert not tab.wrong


def test_a_change_asks_first(chromium: Browser, world: World) -> None:
    """Nothing happens before it is confirmed; Escape calls it off; the dangerous needs the name."""
    world.post("groups", {"conversation_id": "c-gone", "owner": "ann", "members": []})
    with chromium.tab() as tab:
        changes = []
        tab.page.on(
            "request", lambda request: changes.append(request.method) if request.method != "GET" else None
        )
        tab.go(f"#/groups?tenant={TENANT}&conversation=c-gone")
        tab.page.get_by_role("button", name="Dismiss").click()
        go_on = tab.page.locator("dialog").get_by_role("button", name="Dismiss")
        assert go_on.is_disabled()
        tab.page.keyboard.press("Escape")
        assert not changes
        tab.page.get_by_role("button", name="Dismiss").click()
        tab.page.locator("dialog input").fill("c-gone")
        go_on.click()
        tab.sees("dismissed", within="main")
        assert changes == ["DELETE"]
        assert world.api.get(f"tenants/{TENANT}/groups/c-gone").json()["dismissed"] is True


def test_rooms_are_governed(chromium: Browser, world: World) -> None:
    with chromium.tab() as tab:
        tab.go(f"#/rooms?tenant={TENANT}")
        tab.page.get_by_role("button", name="New room").click()
        tab.page.locator("dialog").get_by_label("Id", exact=True).fill("c-lobby")
        tab.page.locator("dialog").get_by_role("button", name="Create").click()
        tab.sees("Connections")
        tab.page.get_by_role("button", name="Mute everybody").click()
        tab.page.locator("dialog").get_by_role("button", name="Mute everybody").click()
        tab.sees("everybody muted")
        assert world.api.get(f"tenants/{TENANT}/rooms/c-lobby").json()["muted_all"] is True
        assert not tab.wrong


def test_dead_letters_are_given_back_and_discarded(chromium: Browser, world: World) -> None:
    """A record that nobody understands: seen with its cause, tried again if given back, put aside."""
    Appender(world.client["brokers"], "qim-test").append(
        "qim.dispatch.v1", 1, b"console-garbage", b"<i>not a dispatch</i>"
    )
    with chromium.tab() as tab:
        letters = tab.rows("Dead letters").filter(has_text="qim.dispatch.v1[1]")
        for _ in range(100):
            tab.go("#/letters?state=open").settled()
            if letters.count():
                break
            tab.page.wait_for_timeout(300)
        letters.first.get_by_role("link").click()
        tab.sees("console-garbage")
        tab.page.get_by_text("Show the bytes").click()
        tab.sees("<i>not a disp")
        tab.page.get_by_role("button", name="Give back").click()
        tab.page.locator("dialog").get_by_role("button", name="Give back").click()
        tab.sees("given back", within=".page-head")
        for _ in range(100):  # the stage tried again and could not: another letter
            tab.go("#/letters?state=open").settled()
            if letters.count():
                break
            tab.page.wait_for_timeout(300)
        before = letters.count()
        letters.first.get_by_role("button", name="Discard").click()
        tab.page.locator("dialog").get_by_role("button", name="Discard").click()
        tab.until(
            "(before) => [...document.querySelectorAll('tbody tr')]"
            ".filter((one) => one.textContent.includes('qim.dispatch.v1[1]')).length < before",
            before,
        )
        assert not tab.wrong


def test_thousands_of_rows_are_a_page_in_the_document(chromium: Browser) -> None:
    leases = [
        {
            "resource": f"s:{n}",
            "node": f"mailbox.{n % 40}",
            "boot": 1,
            "address": f"host-{n % 40}",
            "epoch": n,
            "remaining_ms": 9,
        }
        for n in range(8_000)
    ]
    with chromium.tab() as tab:
        answered(tab, "leases", {"leases": leases})
        tab.go("#/shards")
        tab.sees("1–25 of 8,000")
        assert tab.rows("Leases").count() == 25
        tab.page.get_by_placeholder("Resource, node, address").fill("host-39")
        tab.sees("1–25 of 200")
        tab.page.get_by_role("button", name="Epoch").last.click()
        tab.page.get_by_role("button", name="Epoch").last.click()
        tab.until("() => document.body.textContent.includes('s:7999')")
        tab.page.get_by_placeholder("Resource, node, address").fill("nobody at all")
        tab.sees("Nothing found")


def test_an_error_says_what_to_do_and_the_page_lives_on(chromium: Browser) -> None:
    failure = {
        "code": 502,
        "name": "STORE_UNAVAILABLE",
        "temporary": True,
        "detail": "a store cannot be reached",
        "field": None,
    }
    with chromium.tab() as tab:
        answered(tab, f"tenants/{TENANT}/users", failure, 503)
        tab.go(f"#/users?tenant={TENANT}")
        tab.sees("look at the topology")
        tab.page.unroute_all()
        tab.page.get_by_role("button", name="Try again").click()
        tab.sees("Page 1,")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_narrow_screens_and_both_colours(chromium: Browser, dark: bool) -> None:
    """At 360 px nothing is wider than the screen; no page has an error in it."""
    with chromium.tab(width=360, height=740, dark=dark) as tab:
        for place in PAGES:
            tab.go(place)
            tab.settled()
            assert tab.overflow() <= 0, place
        background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.findall(r"\d+", background)[0])
        assert (red < 60) == dark
        assert not tab.wrong


def test_keyboard_alone(chromium: Browser) -> None:
    """The first stop leads to the content; focus is seen; a page is reached without a mouse."""
    with chromium.tab() as tab:
        tab.go("#/topology")
        tab.sees("Writer", within=".flow")
        tab.page.locator("body").evaluate("() => { document.activeElement.blur(); }")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.className") == "skip"
        assert tab.page.locator(".skip").bounding_box()["y"] >= 0
        outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("document.activeElement.id") == "main"
        tab.page.get_by_role("link", name="Shards and leases").focus()
        tab.page.keyboard.press("Enter")
        tab.sees("MailboxShards")
        assert tab.page.evaluate("document.activeElement.id") == "main"
