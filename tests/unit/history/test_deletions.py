"""What a user has deleted for himself is in breaks: pages stay exact in both directions (Spec: §8, §9)."""

import random

import pytest

from qim_streams.history.rules import DELETED, UNUSED, HistoryPage, PageQuery, PageWalk, Scope
from qim_streams.records import MessageRecord
from qim_streams.wire.events import common_body

SEEDS = range(60)


def page_of(scope: Scope, query: PageQuery, bodies: dict[int, bytes]) -> HistoryPage:
    """A page, read span by span."""
    walk = PageWalk(scope, query)
    while (span := walk.next_span(7)) is not None:
        walk.take(span, {seq: bodies[seq] for seq in range(span.low, span.high + 1) if seq in bodies}, ())
    return walk.page()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("newer", [True, False])
def test_pages_cover_every_number_once(seed: int, newer: bool) -> None:
    """Random floors, deletes, holes and page sizes: each number once, with the right reason."""
    rng = random.Random(seed)
    head = rng.randrange(1, 60)
    bodies = {seq: b"%d" % seq for seq in range(1, head + 1) if rng.random() < 0.8}
    cleared, deleted = rng.randrange(0, head + 3), frozenset(rng.sample(range(1, head + 1), head // 4))
    scope = Scope(((0, None),), head, head, cleared, deleted)
    seen: dict[int, str] = {}
    anchor: int | None = None
    for _ in range(200):
        page = page_of(scope, PageQuery(newer, anchor, rng.randrange(1, 9), rng.choice((6, 10**6))), bodies)
        for body in page.messages:
            assert seen.setdefault(int(body), "message") == "message"
        for low, high, reason in page.breaks:
            for seq in range(low, high + 1):
                assert seq not in seen
                seen[seq] = reason
        assert page.next_anchor != anchor
        anchor = page.next_anchor
        if not page.has_more:
            break
    expected = {
        seq: DELETED if seq <= cleared or seq in deleted else "message" if seq in bodies else UNUSED
        for seq in range(1, head + 1)
    }
    assert seen == expected


def test_deletes_do_not_cost_reads() -> None:
    """Every other message deleted: one span, not one for each stretch."""
    scope = Scope(((0, None),), 40, 40, 0, frozenset(range(2, 41, 2)))
    walk = PageWalk(scope, PageQuery(True, None, 100, 10**6))
    assert walk.next_span(64) == (1, 40)


def test_an_edit_goes_with_the_message_that_was_deleted() -> None:
    """It has the text of its message; whether it was made before the delete or after it does not matter."""

    def body(seq: int, kind: int = 0, target: int = 0) -> bytes:
        identity, extra = seq.to_bytes(16, "big"), (0, target, 1) if kind else ()
        return common_body(
            MessageRecord(
                seq,
                1,
                "acme",
                "c",
                identity,
                identity,
                "ben",
                1,
                "d",
                "m",
                1,
                9,
                kind,
                0,
                b"target_seq",
                extra,
            )
        )

    bodies = {1: body(1), 2: body(2), 3: body(3), 4: body(4, 1, 1), 5: body(5, 1, 2), 6: body(6, 2, 3)}
    query = PageQuery(True, None, 100, 10**6)
    one = page_of(Scope(((0, None),), 6, 6, 0, frozenset({2})), query, bodies)
    assert one.messages == [bodies[1], bodies[3], bodies[4], bodies[6]]
    assert one.breaks == [(2, 2, DELETED), (5, 5, DELETED)]
    floor = page_of(Scope(((0, None),), 6, 6, 2), query, bodies)
    assert floor.messages == [bodies[3], bodies[6]]
    assert floor.breaks == [(1, 2, DELETED), (4, 5, DELETED)]
    assert len(page_of(Scope(((0, None),), 6, 6), query, bodies).messages) == 6
