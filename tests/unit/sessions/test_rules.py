"""The pure rules of the session list: marks, the walk for unread, cursors, bytes of states."""

import random

import pytest

from qim_streams import limits
from qim_streams.errors import AdmissionRefused, RecordError
from qim_streams.history.rules import Span
from qim_streams.membership.ports import Intervals, Member
from qim_streams.sessions import rules
from qim_streams.sessions.rules import ListPlace, RowView, TailMessage, TailWalk, Unread
from qim_streams.sessions.state import NOT_HIDDEN, UserConversationState, decode_state

STATE = UserConversationState("ann", "team")


def view(
    committed: int,
    intervals: Intervals = ((0, None),),
    state: UserConversationState = STATE,
    policy: str = "joined",
) -> RowView:
    member = Member("ann", 64, "member", intervals[-1][1] is None, intervals) if intervals else None
    return RowView("team", "group", "", None, False, committed, committed, policy, member, state)


def said(seq: int, sender: str = "ben", kind: int = 0, state: int = 0, **more: object) -> TailMessage:
    return TailMessage(seq, bytes(16), sender, kind, state, 1, b"x", False, **more)  # type: ignore[arg-type]


def walked(of: RowView, messages: dict[int, TailMessage], step: int = rules.WALK_STEP) -> TailWalk:
    walk = TailWalk(of)
    while (span := walk.next_span(step)) is not None:
        assert span.high - span.low < step
        walk.take(span, {seq: messages[seq] for seq in range(span.low, span.high + 1) if seq in messages})
    return walk


# -- marks


def test_f14_f19_reading_only_grows_whatever_the_order() -> None:
    """F14: 50 then 30 is 50. F19: of 5, 9, 7 it is 9. Never beyond the head."""
    generator = random.Random(5)
    for _ in range(200):
        seqs = [generator.randrange(0, 60) for _ in range(6)]
        state = STATE
        for seq in seqs:
            before, state = state, rules.mark_read(state, seq, 50)
            assert state.read_seq >= before.read_seq
        assert state.read_seq == min(max(seqs), 50)


def test_versions_grow_and_nothing_changes_for_nothing() -> None:
    """A mark without effect is the same state; a clock that goes back still gives a higher version."""
    first = rules.stamped(STATE, rules.set_mute(STATE, True), 1_000)
    assert first.version == 1_000
    assert rules.stamped(first, rules.set_mute(first, True), 2_000) is first
    later = rules.stamped(first, rules.set_mute(first, False), 500)
    assert later.version == 1_001


def test_pins_keep_their_time() -> None:
    pinned = rules.set_pin(STATE, True, 10)
    assert rules.set_pin(pinned, True, 20) is pinned
    assert rules.set_pin(pinned, False, 30).pinned_at == 0
    assert rules.set_pin(STATE, True, 0).pinned_at == 1, "0 is not pinned"


def test_hiding_lasts_until_the_next_message() -> None:
    hidden = rules.hide(STATE, True, 7)
    assert rules.is_hidden(hidden, 7)
    assert not rules.is_hidden(hidden, 8)
    assert rules.hide(hidden, False, 7).hidden_at_seq == NOT_HIDDEN
    assert rules.is_hidden(rules.hide(STATE, True, 0), 0), "an empty conversation, too"


def test_deleting_is_bounded_and_folds_into_the_floor() -> None:
    state = rules.delete_messages(STATE, [5, 3, 9, 3, 0, 11], 10)
    assert state.deleted == (3, 5, 9), "ascending, once each, of what was said"
    cleared = rules.clear(state, 5, 10)
    assert (cleared.deleted_to_seq, cleared.deleted) == (5, (9,))
    assert rules.clear(cleared, 2, 10) == cleared, "the floor never goes back"
    assert rules.clear(cleared, 99, 10).deleted_to_seq == 10
    assert rules.delete_messages(cleared, [1, 5], 10) == cleared
    full = rules.delete_messages(STATE, range(1, limits.SESSION_DELETES_MAX + 1), 10_000)
    assert rules.delete_messages(full, [1], 10_000) == full
    with pytest.raises(AdmissionRefused, match="clear it"):
        rules.delete_messages(full, [9_999], 10_000)


def test_bytes_of_a_state() -> None:
    """What is written comes back, fields of a newer version included; anything else is a RecordError."""
    state = UserConversationState("ann", "team", 9, 3, 1_000, 7, True, 5, 2, 1, (4, 6), ("newer",))
    assert decode_state(state.encode()) == state
    for damaged in (b"", b"\x01", state.encode()[:-9], STATE._replace(version="x").encode()):  # type: ignore[arg-type]
        with pytest.raises(RecordError):
            decode_state(damaged)
    with pytest.raises(RecordError, match=r"\$\[10\]"):
        decode_state(STATE._replace(deleted=("x",)).encode())  # type: ignore[arg-type]


# -- unread


def test_the_walk_is_the_definition_whatever_its_steps() -> None:
    """Random conversations, bases and steps, against counting everything."""
    generator = random.Random(11)
    for _ in range(300):
        head = generator.randrange(0, 40)
        messages = {
            seq: said(
                seq,
                generator.choice(("ann", "ben", "ben", "cleo", "ben")),
                generator.choice((0, 0, 0, 0, 1)),
                generator.choice((0, 0, 0, 2)),
            )
            for seq in range(1, head + 1)
            if generator.random() < 0.9
        }
        state = STATE._replace(
            read_seq=generator.randrange(0, head + 1),
            deleted_to_seq=generator.randrange(0, head + 1),
            deleted=tuple(sorted(generator.sample(range(1, head + 1), min(3, head)))),
        )
        joined = generator.randrange(0, head + 1)
        walk = walked(view(head, ((joined, None),), state), messages, generator.randrange(1, 9))
        mine = [one.seq for one in messages.values() if one.sender_id == "ann" and one.kind == 0]
        base = max([joined, state.read_seq, state.deleted_to_seq, *mine])
        counted = [
            one
            for one in messages.values()
            if one.seq > base and one.kind == 0 and one.state != 2 and one.seq not in state.deleted
        ]
        assert walk.unread() == Unread(len(counted), True, 0)
        shown = [
            one.seq
            for one in messages.values()
            if one.kind == 0 and one.seq > max(joined, state.deleted_to_seq) and one.seq not in state.deleted
        ]
        assert (walk.last.seq if walk.last else 0) == max(shown, default=0)


def test_f8_two_hundred_and_one() -> None:
    """F8: 200 are exact, 201 are 200 and more; a walk looks no further than it must."""
    messages = {seq: said(seq) for seq in range(1, 1_000)}
    assert walked(view(200), messages).unread() == Unread(200, True, 0)
    walk = walked(view(999), messages)
    assert walk.unread() == Unread(200, False, 0)
    with pytest.raises(ValueError, match="stands at"):
        walk.take(Span(1, 1), {})


def test_a_walk_is_bounded() -> None:
    """A thousand operations in a row: what was counted is given, and that it is not exact."""
    messages = {seq: said(seq, kind=1) for seq in range(2, 3_000)} | {1: said(1)}
    walk = walked(view(2_999), messages)
    assert (walk.unread(), walk.last) == (Unread(0, False, 0), None)


def test_mentions_among_the_unread() -> None:
    messages = {
        1: said(1, mentions=("ann",)),
        2: said(2, mentions=("ann", "cleo")),
        3: said(3, mentions_all=True),
        4: said(4, mentions=("cleo",)),
    }
    assert walked(view(4, state=STATE._replace(read_seq=1)), messages).unread() == Unread(3, True, 2)


def test_former_members_and_strangers() -> None:
    """Who has left sees the end of his stay and has nothing unread; who never was one sees nothing."""
    messages = {seq: said(seq) for seq in range(1, 9)}
    left = walked(view(8, ((0, 5),)), messages)
    assert left.unread() == Unread(0, True, 0)
    assert left.last is not None
    assert left.last.seq == 5
    back = walked(view(8, ((0, 2), (8, None))), messages)
    assert (back.unread(), back.last and back.last.seq) == (Unread(0, True, 0), 2), "not what came between"
    nobody = walked(view(8, ()), messages)
    assert (nobody.unread(), nobody.last) == (Unread(0, True, 0), None)


def test_cursors() -> None:
    place = ListPlace(1_760_000_000_000, "d.x~y.z")
    assert rules.decode_place(place.encode()) == place
    for wrong in ("", "x", "5", "5.", ".a", "-5.a", "5e3.a", "٣.a", "12345678901234567.a"):
        with pytest.raises(AdmissionRefused, match="cursor"):
            rules.decode_place(wrong)
