"""Membership rules: who may what, intervals, visible ranges (G1, G2), version chains."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import AdmissionRefused
from qim_streams.membership import rules
from qim_streams.membership.ports import Conversation, Join, Member
from qim_streams.membership.rules import (
    ADMIN,
    MEMBER,
    NOTHING,
    OWNER,
    chain_of,
    closed,
    fold_map,
    garbage,
    is_visible,
    opened,
    visible_ranges,
)

ROLES = (OWNER, ADMIN, MEMBER)
GROUP = Conversation("t", "g", "group", 3, 10, "name", "members", "invite", "joined", 5, 3, 1, "o", False)


def member(user: str, role: str = MEMBER, active: bool = True, joined: int = 0) -> Member:
    return Member(user, 1, role, active, ((joined, None),) if active else ((joined, joined + 5),))


def code_of(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(AdmissionRefused) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    assert caught.value.retry_after_ms is None
    return caught.value.code


# -- intervals and what is visible


def test_an_interval_opens_and_closes_at_the_seq_of_the_change() -> None:
    once = closed(opened((), 3), 7)
    assert once == ((3, 7),)
    assert opened(once, 9) == ((3, 7), (9, None))
    assert opened(once, 7) == ((3, None),), "nothing was said in between"
    assert closed(opened(once, 9), 9) == once, "an interval without a message"


@given(st.lists(st.integers(0, 3), max_size=400))
def test_intervals_stay_ascending_disjoint_and_bounded(steps: list[int]) -> None:
    intervals: rules.Intervals = ()
    seq = 0
    for step in steps:
        seq += step
        is_open = bool(intervals) and intervals[-1][1] is None
        intervals = closed(intervals, seq) if is_open else opened(intervals, seq)
        assert len(intervals) <= rules.INTERVALS_MAX
        assert all(left is not None for _, left in intervals[:-1])
        assert all(joined < left for joined, left in intervals if left is not None)
        assert all((a[1] or 0) < b[0] for a, b in pairwise(intervals))


def test_leave_at_399_rejoin_send_561() -> None:
    """G1: 400 to 560 stay hidden, 561 is visible."""
    intervals = opened(closed(opened((), 0), 399), 560)
    bob = Member("bob", 1, MEMBER, True, intervals)
    ranges = visible_ranges(bob, "joined")
    assert [seq for seq in (1, 399, 400, 560, 561, 9_999) if is_visible(ranges, seq)] == [1, 399, 561, 9_999]


# how a member went and came back (leave at 10, 20 messages later back at 30) x history policy
G2 = [
    ("never", "joined", ()),
    ("never", "all", ()),
    ("joined at 5", "joined", ((5, None),)),
    ("joined at 5", "all", ((0, None),)),
    ("left at 10", "joined", ((5, 10),)),
    ("left at 10", "all", ((0, 10),)),
    ("left at 10, back at 30", "joined", ((5, 10), (30, None))),
    ("left at 10, back at 30", "all", ((0, None),)),
    ("left at 10, back at 30, left at 40", "joined", ((5, 10), (30, 40))),
    ("left at 10, back at 30, left at 40", "all", ((0, 40),)),
    ("left before a word", "joined", ()),
    ("left before a word", "all", ()),
]


@pytest.mark.parametrize(("story", "policy", "expected"), G2)
def test_visible_ranges_after_quit_kick_and_invitation(
    story: str, policy: str, expected: rules.Intervals
) -> None:
    """G2: the matrix. A kick and a quit leave the same row, so what is visible does not depend on which."""
    if story == "never":
        assert visible_ranges(None, policy) == expected
        return
    intervals: rules.Intervals = opened((), 5)
    for part in story.replace("joined at 5", "").split(", "):
        if part.startswith("left before"):
            intervals = closed(opened((), 5), 5)
        elif part.startswith("left"):
            intervals = closed(intervals, int(part.split()[-1]))
        elif part.startswith("back"):
            intervals = opened(intervals, int(part.split()[-1]))
    active = bool(intervals) and intervals[-1][1] is None
    assert visible_ranges(Member("bob", 1, MEMBER, active, intervals), policy) == expected


# -- who may


def test_create_makes_the_creator_owner_once() -> None:
    head = rules.new_head("group", {"name": "x"}, 5, 1)
    plan = rules.plan_create(
        Join("ann", 1, MEMBER), [Join("bob", 2, MEMBER), Join("ann", 1, MEMBER)], head, 5
    )
    assert [(join.user_id, join.role) for join in plan.joins] == [("ann", OWNER), ("bob", MEMBER)]
    by_operator = rules.plan_create(None, [Join("bob", 2, MEMBER), Join("cat", 3, MEMBER)], head, 5)
    assert [join.role for join in by_operator.joins] == [OWNER, MEMBER]


def test_create_refuses_wrong_fields_and_too_many() -> None:
    ann = Join("ann", 1, MEMBER)
    assert code_of(rules.plan_create, None, [], {}, 5) == "FIELD_INVALID"
    many = [Join(f"u{n}", n, MEMBER) for n in range(5)]
    assert code_of(rules.plan_create, ann, many, {}, 5) == "GROUP_TOO_LARGE"
    for head in (
        {"name": "x" * 129},
        {"name": "a\nb"},
        {"name": "a\x7fb"},
        {"send_policy": "nobody"},
        {"history_policy": ""},
    ):
        assert code_of(rules.plan_create, ann, [], head, 5) == "FIELD_INVALID"
    assert code_of(rules.new_head, "group", {"seq": "9"}, 5, 1) == "FIELD_INVALID"


@pytest.mark.parametrize(("role", "policy"), product((*ROLES, None, "left"), ("invite", "open")))
def test_who_may_add(role: str | None, policy: str) -> None:
    head = replace(GROUP, join_policy=policy)
    if role == "left" or role is None:
        actor = None if role is None else member("a", MEMBER, active=False)
        assert code_of(rules.may_add, head, actor) == "NOT_MEMBER"
    elif role == MEMBER and policy == "invite":
        assert code_of(rules.may_add, head, member("a", role)) == "NOT_ALLOWED"
    else:
        rules.may_add(head, member("a", role))
    rules.may_add(head, None, system=True)


def test_adding_twice_changes_nothing() -> None:
    bob = Join("bob", 2, MEMBER)
    assert rules.plan_add(GROUP, [(bob, member("bob"))]) == NOTHING
    assert rules.plan_add(GROUP, [(bob, None), (bob, None)]).joins == (bob,)
    assert rules.plan_add(GROUP, [(bob, member("bob", active=False))]).joins == (bob,)


def test_the_size_of_a_group_is_bounded() -> None:
    joins = [(Join(f"u{n}", n, MEMBER), None) for n in range(3)]
    assert code_of(rules.plan_add, GROUP, joins) == "GROUP_TOO_LARGE"
    assert len(rules.plan_add(GROUP, joins[:2]).joins) == 2


def test_joining_needs_an_open_group() -> None:
    assert code_of(rules.may_join, GROUP, None) == "NOT_ALLOWED"
    rules.may_join(GROUP, member("a"))
    rules.may_join(replace(GROUP, join_policy="open"), None)


def test_the_first_one_back_into_an_empty_group_owns_it() -> None:
    empty = replace(GROUP, members_active=0, join_policy="open")
    plan = rules.plan_add(empty, [(Join("bob", 2, MEMBER), None), (Join("cat", 3, MEMBER), None)])
    assert [join.role for join in plan.joins] == [OWNER, MEMBER]


def test_leaving() -> None:
    bob = member("bob")
    assert rules.plan_leave(GROUP, bob, None) == rules.Plan(leaves=(bob,))
    assert rules.plan_leave(GROUP, member("bob", active=False), None) == NOTHING
    assert code_of(rules.plan_leave, GROUP, None, None) == "NOT_MEMBER"
    admin = member("adm", ADMIN)
    assert rules.plan_leave(GROUP, admin, None).roles == {"adm": MEMBER}, "a rank does not survive leaving"


def test_an_owner_who_leaves_is_followed_by_the_highest_then_the_longest_there() -> None:
    owner = member("o", OWNER)
    old, young = member("zoe", joined=1), member("adam", joined=9)
    admin, gone = member("adm", ADMIN, joined=20), member("x", ADMIN, active=False)
    assert rules.heir_of([owner, young, old, gone], "o") == old
    assert rules.heir_of([owner, young, old, admin], "o") == admin
    assert rules.heir_of([owner, gone], "o") is None
    assert rules.plan_leave(GROUP, owner, admin).roles == {"o": MEMBER, "adm": OWNER}
    assert rules.plan_leave(GROUP, owner, None).roles == {"o": MEMBER}


REMOVALS = {
    (OWNER, OWNER): "NOT_ALLOWED",
    (OWNER, ADMIN): "",
    (OWNER, MEMBER): "",
    (ADMIN, OWNER): "NOT_ALLOWED",
    (ADMIN, ADMIN): "NOT_ALLOWED",
    (ADMIN, MEMBER): "",
    (MEMBER, OWNER): "NOT_ALLOWED",
    (MEMBER, ADMIN): "NOT_ALLOWED",
    (MEMBER, MEMBER): "NOT_ALLOWED",
}


@pytest.mark.parametrize(("actor", "target"), REMOVALS)
def test_who_may_remove_whom(actor: str, target: str) -> None:
    wanted = member("b", target)
    if expected := REMOVALS[actor, target]:
        assert code_of(rules.plan_remove, GROUP, member("a", actor), [wanted]) == expected
    else:
        plan = rules.plan_remove(GROUP, member("a", actor), [wanted, member("c", active=False)])
        assert plan.leaves == (wanted,)
        assert plan.roles == ({"b": MEMBER} if target == ADMIN else {})


def test_the_operator_removes_everybody_but_the_owner() -> None:
    assert rules.plan_remove(GROUP, None, [member("b", ADMIN)], system=True).leaves
    assert code_of(rules.plan_remove, GROUP, None, [member("o", OWNER)], system=True) == "NOT_ALLOWED"


def test_nobody_removes_himself_and_removing_who_is_gone_is_nothing() -> None:
    assert code_of(rules.plan_remove, GROUP, member("a", ADMIN), [member("a", MEMBER)]) == "NOT_ALLOWED"
    assert rules.plan_remove(GROUP, member("a", ADMIN), [member("b", active=False)]) == NOTHING


def test_roles_are_the_owners_to_give() -> None:
    owner, bob = member("o", OWNER), member("bob")
    assert rules.plan_set_role(GROUP, owner, bob, ADMIN).roles == {"bob": ADMIN}
    assert rules.plan_set_role(GROUP, owner, bob, MEMBER) == NOTHING
    assert rules.plan_set_role(GROUP, owner, bob, OWNER).roles == {"bob": OWNER, "o": ADMIN}
    by_operator = rules.plan_set_role(GROUP, None, bob, OWNER, owner=owner, system=True)
    assert by_operator.roles == {"bob": OWNER, "o": ADMIN}
    for actor in (ADMIN, MEMBER):
        assert code_of(rules.plan_set_role, GROUP, member("a", actor), bob, ADMIN) == "NOT_ALLOWED"
    assert code_of(rules.plan_set_role, GROUP, owner, owner, MEMBER) == "NOT_ALLOWED"
    assert code_of(rules.plan_set_role, GROUP, owner, None, ADMIN) == "NOT_MEMBER"
    assert code_of(rules.plan_set_role, GROUP, owner, bob, "king") == "FIELD_INVALID"


def test_updates_hold_only_what_changes() -> None:
    admin = member("a", ADMIN)
    plan = rules.plan_update(GROUP, admin, {"name": "name", "send_policy": "admins"})
    assert plan.head == {"send_policy": "admins"}
    assert rules.plan_update(GROUP, admin, {"name": "name"}) == NOTHING
    assert code_of(rules.plan_update, GROUP, member("b"), {"name": "x"}) == "NOT_ALLOWED"
    assert code_of(rules.plan_update, GROUP, admin, {"seq": "0"}) == "FIELD_INVALID"
    assert code_of(rules.plan_update, GROUP, admin, {"join_policy": "closed"}) == "FIELD_INVALID"


def test_dismissing_is_the_owners_and_final() -> None:
    assert rules.plan_dismiss(GROUP, member("o", OWNER)).head == {"dismissed": 1}
    assert code_of(rules.plan_dismiss, GROUP, member("a", ADMIN)) == "NOT_ALLOWED"
    gone = replace(GROUP, dismissed=True)
    assert rules.plan_dismiss(gone, member("o", OWNER)) == NOTHING
    assert code_of(rules.may_add, gone, member("o", OWNER)) == "DISMISSED"
    assert code_of(rules.may_join, gone, None) == "DISMISSED"
    assert code_of(rules.plan_remove, gone, member("o", OWNER), []) == "DISMISSED"
    assert code_of(rules.plan_update, gone, member("o", OWNER), {}) == "DISMISSED"
    assert rules.plan_leave(gone, member("b"), None).leaves, "one may still leave"


def test_a_direct_chat_never_changes() -> None:
    chat, ann = replace(GROUP, kind="direct"), member("ann")
    assert code_of(rules.may_add, chat, ann) == "NOT_ALLOWED"
    assert code_of(rules.may_add, chat, None, system=True) == "NOT_ALLOWED"
    assert code_of(rules.may_join, chat, None) == "NOT_ALLOWED"
    assert code_of(rules.plan_leave, chat, ann, None) == "NOT_ALLOWED"
    assert code_of(rules.plan_remove, chat, ann, []) == "NOT_ALLOWED"
    assert code_of(rules.plan_set_role, chat, ann, ann, OWNER) == "NOT_ALLOWED"
    assert code_of(rules.plan_update, chat, ann, {}) == "NOT_ALLOWED"
    assert code_of(rules.plan_dismiss, chat, ann) == "NOT_ALLOWED"


@given(st.data())
def test_a_group_with_members_always_has_exactly_one_owner(data: st.DataObject) -> None:
    """Any sequence of accepted changes keeps the invariant."""
    rows = {"u0": member("u0", OWNER)}
    for _ in range(data.draw(st.integers(1, 25))):
        active = sorted(user for user, row in rows.items() if row.active)
        head = replace(GROUP, members_max=9, members_active=len(active), join_policy="open")
        actor, target = (data.draw(st.sampled_from([f"u{n}" for n in range(6)])) for _ in range(2))
        try:
            plan = data.draw(st.sampled_from(_changes(head, rows, actor, target)))()
        except AdmissionRefused:
            continue
        for join in plan.joins:
            rows[join.user_id] = member(join.user_id, join.role)
        for leaving in plan.leaves:
            rows[leaving.user_id] = replace(rows[leaving.user_id], active=False)
        for user, role in plan.roles.items():
            rows[user] = replace(rows[user], role=role)
        owners = [user for user, row in rows.items() if row.active and row.role == OWNER]
        assert len(owners) == (1 if any(row.active for row in rows.values()) else 0)


def _changes(head: Conversation, rows: dict[str, Member], actor: str, target: str) -> list[object]:
    def add() -> rules.Plan:
        rules.may_add(head, rows.get(actor))
        return rules.plan_add(head, [(Join(target, 1, MEMBER), rows.get(target))])

    def join() -> rules.Plan:
        rules.may_join(head, rows.get(actor))
        return rules.plan_add(head, [(Join(actor, 1, MEMBER), rows.get(actor))])

    def leave() -> rules.Plan:
        return rules.plan_leave(head, rows.get(actor), rules.heir_of(rows.values(), actor))

    def remove() -> rules.Plan:
        return rules.plan_remove(head, rows.get(actor), [rows[target]] if target in rows else [])

    def promote() -> rules.Plan:
        return rules.plan_set_role(head, rows.get(actor), rows.get(target), OWNER)

    def appoint() -> rules.Plan:
        return rules.plan_set_role(head, rows.get(actor), rows.get(target), ADMIN)

    return [add, join, leave, remove, promote, appoint]


# -- versions


def test_a_chain_starts_at_a_whole_map() -> None:
    assert list(chain_of(1)) == [1]
    assert list(chain_of(63)) == list(range(1, 64))
    assert list(chain_of(64)) == [64]
    assert list(chain_of(130)) == [128, 129, 130]


def test_maps_fold_and_forget_empty_shards() -> None:
    assert fold_map([{1: 1, 2: 1}, {2: 2}, {1: 0, 3: 3}]) == {2: 2, 3: 3}
    assert fold_map([]) == {}


def test_garbage_is_what_the_following_map_does_not_use() -> None:
    block = [{1: 1, 2: 1}, {2: 2}, {1: 0}, {3: 4}]
    assert garbage(block, {2: 2, 3: 9}) == [(1, 1), (2, 1), (3, 4)]
