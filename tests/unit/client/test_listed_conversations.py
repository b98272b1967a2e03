"""The set of conversations of a rebuild: whole up to this device's sync_to_seq (Spec: §8 (2); A16)."""

from types import SimpleNamespace
from typing import Any

import pytest

from qim_streams.client.sessions import LISTED_ATTEMPTS_MAX, ListedConversations
from qim_streams.wire.frames_sessions import SessionList


class Lists:
    """Requests that are answered with pages: (ids, position, complete, next_cursor)."""

    def __init__(self, *pages: tuple[tuple[str, ...], int, bool, str | None]) -> None:
        self.pages, self.asked = list(pages), list[Any]()

    async def ask(self, make: Any, kind: type[SessionList]) -> SessionList:
        self.asked.append(make(1).cursor)
        ids, position, complete, cursor = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        rows: Any = [SimpleNamespace(conversation_id=one) for one in ids]
        return SessionList(1, rows, position, complete, cursor)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None: ...

    monkeypatch.setattr("qim_streams.client.sessions.asyncio.sleep", sleep)


def listed(lists: Lists, sync_to_seq: int) -> ListedConversations:
    session: Any = SimpleNamespace(
        auth=SimpleNamespace(sync_to_seq=sync_to_seq), inbox=SimpleNamespace(positions=lambda: {"kept": 3})
    )
    requests: Any = lists
    return ListedConversations(session, requests)


async def test_a_list_that_is_behind_the_mailbox_is_asked_for_again() -> None:
    lists = Lists((("a",), 8, True, None), (("a",), 9, True, None), (("a", "b"), 10, True, None))
    found = await listed(lists, 10).conversations()
    assert (found.ids, found.complete) == ({"a", "b", "kept"}, True)
    assert len(lists.asked) == 3


async def test_the_first_page_says_how_far_the_list_goes() -> None:
    lists = Lists((("a",), 10, True, "more"), (("b",), 4, True, None))
    found = await listed(lists, 10).conversations()
    assert (found.ids, found.complete) == ({"a", "b", "kept"}, True)
    assert lists.asked == [None, "more"]


async def test_a_list_that_stays_behind_is_taken_as_incomplete() -> None:
    lists = Lists((("a",), 8, True, None))
    found = await listed(lists, 10).conversations()
    assert (found.ids, found.complete) == ({"a", "kept"}, False)
    assert len(lists.asked) == LISTED_ATTEMPTS_MAX
