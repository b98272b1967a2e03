"""What a user has deleted for himself is in breaks: pages stay exact in both directions (Spec: §8, §9)."""

import random

import pytest

from qim_streams.history.rules import DELETED, UNUSED, HistoryPage, PageQuery, PageWalk, Scope

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
