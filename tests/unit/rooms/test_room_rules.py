"""Who may do what in a room (Spec: §10)."""

import pytest

from qim_streams.errors import AdmissionRefused
from qim_streams.rooms import rules
from qim_streams.rooms.rules import NOBODY, RoomHead, Standing, TokenBucket, apply_action
from qim_streams.wire import frames_rooms

HEAD = RoomHead("lobby", "open", "ann", 1)
MODS = {"mia": Standing("moderator"), "max": Standing("moderator")}


def code_of(call: object, *args: object) -> str:
    """The refusal of a call, or nothing."""
    try:
        call(*args)  # type: ignore[operator]
    except AdmissionRefused as error:
        return error.code
    return ""


def test_the_actions_of_rules_and_frames_are_the_same() -> None:
    assert tuple(rules.ACTIONS) == frames_rooms.ACTIONS


@pytest.mark.parametrize(
    ("head", "standing", "join", "send"),
    [
        (HEAD, NOBODY, "", ""),
        (HEAD._replace(closed=True), Standing("owner"), "ROOM_CLOSED", "ROOM_CLOSED"),
        (HEAD, Standing(banned_until=11), "BANNED", "BANNED"),
        (HEAD, Standing(banned_until=10), "", ""),
        (HEAD, Standing(muted_until=11), "", "MUTED"),
        (HEAD, Standing(muted_until=10), "", ""),
        (HEAD._replace(muted_all=True), NOBODY, "", "MUTED"),
        (HEAD._replace(muted_all=True), Standing("moderator"), "", ""),
        (HEAD._replace(join_policy="members"), NOBODY, "NOT_ALLOWED", "NOT_ALLOWED"),
        (HEAD._replace(join_policy="members"), Standing("member"), "", ""),
    ],
)
def test_joining_and_sending(head: RoomHead, standing: Standing, join: str, send: str) -> None:
    assert code_of(rules.check_join, head, standing, 10) == join
    assert code_of(rules.check_send, head, standing, 10) == send


@pytest.mark.parametrize("action", list(rules.ACTIONS))
@pytest.mark.parametrize("actor", ["ann", "mia", "bob", None])
def test_who_may_act(action: str, actor: str | None) -> None:
    """Owner and operator everything; moderators what owners alone may not; nobody else anything."""
    owners_only = action in ("add_moderator", "remove", "close")
    allowed = actor in ("ann", None) or (actor == "mia" and not owners_only)
    assert code_of(apply_action, HEAD, MODS, actor, action, "eve", 0) == ("" if allowed else "NOT_ALLOWED")


def test_nobody_acts_on_the_owner_and_moderators_not_on_each_other() -> None:
    assert code_of(apply_action, HEAD, MODS, None, "mute", "ann", 0) == "NOT_ALLOWED"
    assert code_of(apply_action, HEAD, MODS, "mia", "kick", "max", 0) == "NOT_ALLOWED"
    assert apply_action(HEAD, MODS, "ann", "kick", "max", 0).standing == NOBODY


def test_what_actions_change() -> None:
    assert apply_action(HEAD, {}, "ann", "mute", "eve", 50).standing == Standing(muted_until=50)
    for_ever = apply_action(HEAD, {}, "ann", "mute", "eve", 0)
    assert (for_ever.standing, for_ever.until_ms) == (
        Standing(muted_until=rules.FOREVER_MS),
        rules.FOREVER_MS,
    )
    muted = {"eve": Standing("member", 50)}
    assert apply_action(HEAD, muted, "ann", "unmute", "eve", 0).standing == Standing("member")
    assert apply_action(HEAD, muted, "ann", "kick", "eve", 70).standing == Standing("", 50, 70)
    assert apply_action(
        HEAD, {"eve": Standing("", 0, 70)}, "ann", "add_member", "eve", 0
    ).standing == Standing("member")
    assert apply_action(HEAD, {}, "ann", "mute_all", "", 0).head.muted_all
    assert apply_action(HEAD, {}, None, "close", "", 0).head.closed
    assert code_of(apply_action, HEAD._replace(closed=True), {}, "ann", "mute", "eve", 0) == "ROOM_CLOSED"


@pytest.mark.parametrize("action", sorted(rules.ABOUT_A_USER))
@pytest.mark.parametrize("user", ["", "a:b", "{x}", "a b", "\u0430nn", "u" * 129, "../ann"])
def test_an_action_about_a_user_names_one(action: str, user: str) -> None:
    """T-X5: not nobody, and nothing with a separator."""
    for actor in ("ann", None):
        assert code_of(apply_action, HEAD, MODS, actor, action, user, 0) == "FIELD_INVALID"


@pytest.mark.parametrize("name", ["a\nb", "\x7f", "x" * 129, "\0"])
def test_a_name_that_no_frame_can_carry(name: str) -> None:
    assert code_of(rules.check_name, name) == "FIELD_INVALID"
    assert code_of(rules.check_name, "The lobby \u00e4") == ""


def test_standings_are_bounded() -> None:
    many = {f"u{n}": Standing("member") for n in range(rules.STANDINGS_MAX)}
    assert code_of(apply_action, HEAD, many, "ann", "mute", "new", 0) == "GROUP_TOO_LARGE"
    assert code_of(apply_action, HEAD, many, "ann", "mute", "u1", 0) == ""


def test_the_bucket_gives_its_rate_and_says_when() -> None:
    bucket = TokenBucket(20.0)
    assert [bucket.wait_ms(5.0) for _ in range(20)] == [0] * 20
    wait_ms = bucket.wait_ms(5.0)
    assert 1 <= wait_ms <= 51
    assert bucket.wait_ms(5.0 + wait_ms / 1_000) == 0
    taken = sum(bucket.wait_ms(6.0 + step / 1_000) == 0 for step in range(10_000))
    assert 200 <= taken <= 220
