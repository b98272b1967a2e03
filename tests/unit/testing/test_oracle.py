"""The oracle: each checker passes a good history and fails a small bad one made for it (I1 I2 I3 I5 I11)."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from qim_streams.testing import oracle
from qim_streams.testing.oracle import Act, Seen

ROOM = "room"


def message_id(seq: int) -> bytes:
    return seq.to_bytes(16, "big")


def send(user: str, seq: int, outcome: str = "ok") -> Act:
    known = outcome == "ok"
    return Act(
        "send", (ROOM, seq if known else 0), user, f"m{seq}", message_id(seq) if known else b"", outcome
    )


def seen(reader: str, seq: int, sender: str = "ann", **changed: object) -> Seen:
    event = f"{reader}/{seq}".encode().ljust(16, b".")
    good = Seen(reader, (100 + seq, 0), event, (ROOM, seq), message_id(seq), sender, f"m{seq}")
    return good._replace(**changed)  # type: ignore[arg-type]


# ann is there from the start; bob hears #2 and #3, leaves, and is back for #5
ACTS = [
    Act("join", (ROOM, 0), "ann"),
    send("ann", 1),
    Act("join", (ROOM, 1), "bob"),
    send("ann", 2),
    send("ann", 3),
    Act("leave", (ROOM, 3), "bob"),
    send("ann", 4),
    Act("join", (ROOM, 4), "bob"),
    send("ann", 5),
]
MAILBOXES = [seen("ann", n) for n in (1, 2, 3, 4, 5)] + [seen("bob", n) for n in (2, 3, 5)]
LOG = [(ROOM, n, message_id(n)) for n in (1, 2, 2, 1, 3, 4, 5)]  # the relay may repeat records


def swapped(rows: Sequence[Seen], first: int, second: int) -> list[Seen]:
    result = list(rows)
    result[first], result[second] = result[second], result[first]
    return result


def test_expected_mailboxes_follow_the_stays() -> None:
    assert oracle.expected_mailboxes(ACTS) == {
        "ann": {(ROOM, n) for n in (1, 2, 3, 4, 5)},
        "bob": {(ROOM, n) for n in (2, 3, 5)},
    }


def test_a_good_history_has_no_violation() -> None:
    assert oracle.violations(ACTS, MAILBOXES, LOG) == []


def test_joining_twice_is_joining_once() -> None:
    acts = [*ACTS, Act("join", (ROOM, 5), "bob")]
    assert oracle.violations(acts, MAILBOXES, LOG) == []


BAD = [
    pytest.param(oracle.no_lost_ack, ACTS, MAILBOXES[:-1], LOG, "bob lacks", id="I1-lost"),
    pytest.param(
        oracle.no_phantom, ACTS, [*MAILBOXES, seen("bob", 9)], LOG, "never sent", id="I2-never-sent"
    ),
    pytest.param(
        oracle.no_phantom,
        [*ACTS, send("ann", 6, "fail")],
        [*MAILBOXES, seen("ann", 6)],
        LOG,
        "refused",
        id="I2-refused",
    ),
    pytest.param(
        oracle.no_phantom, ACTS, [*MAILBOXES[:-1], seen("bob", 5, "eve")], LOG, "sender", id="I2-other-sender"
    ),
    pytest.param(
        oracle.no_phantom,
        ACTS,
        [*MAILBOXES, seen("ann", 6, key="m5")],
        LOG,
        "its ack said",
        id="I2-other-place",
    ),
    pytest.param(
        oracle.one_per_key, ACTS, [*MAILBOXES, MAILBOXES[-1]], LOG, "is there 2 times", id="I3-event-twice"
    ),
    pytest.param(
        oracle.one_per_key,
        ACTS,
        [*MAILBOXES, seen("ann", 6, key="m5")],
        LOG,
        "m5 has 2 values",
        id="I3-key-with-two-ids",
    ),
    pytest.param(
        oracle.one_per_key,
        ACTS,
        MAILBOXES,
        [*LOG, (ROOM, 5, message_id(7))],
        "5) has 2 values",
        id="I3-seq-reused",
    ),
    pytest.param(oracle.in_order, ACTS, swapped(MAILBOXES, 0, 1), LOG, "ann reads", id="I5-mailbox-order"),
    pytest.param(
        oracle.in_order, ACTS, MAILBOXES, [LOG[-1], *LOG[:-1]], "Outbox order", id="I5-outbox-order"
    ),
    pytest.param(
        oracle.in_order,
        [*ACTS, Act("send", (ROOM, 6), "ann", "m6", message_id(3))],
        MAILBOXES,
        LOG,
        "ack order",
        id="I5-id-goes-back",
    ),
    pytest.param(
        oracle.only_members, ACTS, [*MAILBOXES, seen("bob", 4)], LOG, "no member", id="I11-after-leaving"
    ),
    pytest.param(oracle.only_members, ACTS, [*MAILBOXES, seen("eve", 1)], LOG, "eve has", id="I11-stranger"),
]


@pytest.mark.parametrize(("checker", "acts", "mailboxes", "log", "says"), BAD)
def test_each_checker_fails_its_bad_history(
    checker: oracle.Checker,
    acts: list[Act],
    mailboxes: list[Seen],
    log: list[oracle.Logged],
    says: str,
) -> None:
    found = checker(acts, mailboxes, log)
    assert any(says in text for text in found), found
    assert found[0] in oracle.violations(acts, mailboxes, log)


def test_an_uncertain_send_may_be_absent_everywhere() -> None:
    assert oracle.violations([*ACTS, send("ann", 6, "info")], MAILBOXES, LOG) == []


def test_an_uncertain_send_that_one_member_has_must_be_with_all() -> None:
    acts = [*ACTS, send("ann", 6, "info")]
    half = [*MAILBOXES[:5], seen("ann", 6), *MAILBOXES[5:]]
    assert oracle.violations(acts, half, LOG) == [f"I1: bob lacks {(ROOM, 6)}"]
    assert oracle.violations(acts, [*half, seen("bob", 6)], LOG) == []


def test_the_oracle_stays_small_and_knows_nothing_of_the_pipeline() -> None:
    source = Path(oracle.__file__).read_text()
    assert len(source.splitlines()) <= 150
    assert "qim_streams" not in source
