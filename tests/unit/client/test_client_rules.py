"""The client's pure rules under random faults: inbox, pulls, sends, delays (P7 P9; A5 C2 C4 D11)."""

from collections import defaultdict
from itertools import count
from random import Random
from typing import Any, cast

import aiohttp
import pytest

from qim_streams.client.backoff import backoff_ms, retry_ms
from qim_streams.client.coverage import Coverage
from qim_streams.client.inbox import Inbox
from qim_streams.client.keeper import RETRY_AFTER_MAX_MS, _retry_after_ms
from qim_streams.client.line import HOLES_MAX
from qim_streams.client.pulls import RangePull
from qim_streams.client.sends import Outgoing, SendQueue
from qim_streams.errors import AdmissionRefused, ProtocolError
from qim_streams.ids import event_id
from qim_streams.wire.answers import error
from qim_streams.wire.frames import Error, Event, MailboxBatch, Message, SendAck, SendMessage

ME = "me"


def event(mailbox_seq: int, conversation: str, seq: int, kind: int = 0) -> Event:
    message_id = f"{conversation}#{seq}".encode().ljust(16, b".")
    message = Message(message_id, conversation, seq, "bob", 0, 0, 1, b"")
    return Event(mailbox_seq, 0, event_id(message_id, ME, kind), 3, 0, message)


# -- inbox


def mailbox_of(random: Random, length: int) -> list[Event]:
    """A mailbox with several conversations; some begin late or have holes (the user had left)."""
    last = {f"c{n}": random.choice((0, 0, 7)) for n in range(4)}
    events = []
    for mailbox_seq in range(0, 2 * length, 2):
        conversation = random.choice(list(last))
        last[conversation] += 1 if random.random() < 0.9 else random.randrange(2, 9)
        events.append(event(mailbox_seq, conversation, last[conversation]))
    return events


@pytest.mark.parametrize("seed", range(40))
def test_inbox_shows_everything_once_in_order_whatever_the_pushes_do(seed: int) -> None:
    random = Random(seed)
    mailbox = mailbox_of(random, 300)
    inbox, shown, cursor = Inbox(), [], -1
    own = {one.event_id for one in mailbox if random.random() < 0.1}
    waiting: list[Event] = []
    for index, one in enumerate(mailbox):
        waiting.append(one)
        if random.random() < 0.1:
            random.shuffle(waiting)
        if random.random() < 0.7:
            for pushed in waiting:
                if pushed.event_id in own:
                    message = pushed.message
                    body = pushed._replace(mailbox_seq=-1)
                    shown += inbox.own(
                        message.conversation_id, message.conversation_seq, pushed.event_id, body
                    )
                elif random.random() < 0.8:
                    shown += inbox.pushed([pushed] * random.choice((1, 1, 2)))
            waiting.clear()
        if random.random() < 0.05 or index == len(mailbox) - 1:
            stretch = [row for row in mailbox[: index + 1] if row.mailbox_seq > cursor]
            cursor = one.mailbox_seq
            shown += inbox.pulled(stretch, cursor)
            if random.random() < 0.2:
                inbox.disconnected()
    counters = inbox.counters
    assert (counters.visible_duplicates, counters.reordered, inbox.held) == (0, 0, 0), f"seed {seed}"
    assert inbox.held_pushed == 0
    assert sorted(one.event_id for one in shown) == sorted(one.event_id for one in mailbox), f"seed {seed}"
    lines: dict[str, list[int]] = defaultdict(list)
    for one in shown:
        lines[one.message.conversation_id].append(one.message.conversation_seq)
    assert all(seqs == sorted(seqs) for seqs in lines.values()), f"seed {seed}"


def test_inbox_counts_a_second_event_for_one_place() -> None:
    inbox = Inbox()
    assert len(inbox.pushed([event(0, "c", 1), event(1, "c", 1, kind=1)])) == 1
    assert inbox.counters.visible_duplicates == 1
    inbox.pushed([event(5, "c", 3), event(6, "c", 3, kind=1)])
    assert inbox.counters.visible_duplicates == 2


def test_inbox_shows_what_comes_late_into_a_proven_hole_and_counts_it() -> None:
    inbox = Inbox()
    inbox.pushed([event(0, "c", 1)])
    inbox.pulled([event(0, "c", 1), event(9, "c", 5)], 9)
    assert [one.message.conversation_seq for one in inbox.pushed([event(3, "c", 3)])] == [3]
    assert inbox.counters.reordered == 1
    assert inbox.pushed([event(3, "c", 3)]) == []
    assert len(inbox.pushed([event(2, "c", 2), event(4, "c", 4)])) == 2


def test_inbox_forgets_ids_but_not_places() -> None:
    inbox = Inbox(ids_remembered=8)
    mailbox = [event(n, "c", n + 1) for n in range(100)]
    assert len(inbox.pushed(mailbox)) == 100
    assert inbox.pulled(mailbox, 99) == []
    assert inbox.counters.wire_duplicates == 100
    assert inbox.counters.visible_duplicates == 0
    assert len(inbox._recent) + len(inbox._older) <= 8


def test_inbox_goes_on_from_stored_positions() -> None:
    inbox = Inbox({"c": 3})
    assert inbox.pulled([event(0, "c", 2), event(1, "c", 3), event(2, "c", 4)], 2)[0].mailbox_seq == 2
    assert inbox.counters.wire_duplicates == 2


def test_inbox_is_bounded() -> None:
    inbox = Inbox()
    inbox.pushed([event(2 * n, "c", 2 * n + 2) for n in range(6_000)])
    assert inbox.is_full
    assert inbox.held <= 4_096
    inbox.pulled([event(2 * n, "c", 2 * n + 2) for n in range(6_000)], 20_000)
    assert inbox.held == 0
    assert len(inbox._lines["c"].holes) <= HOLES_MAX


def message_of(conversation: str, seq: int) -> Event:
    """As history gives it: no place in the mailbox."""
    return event(seq, conversation, seq)._replace(mailbox_seq=-1)


def seqs(events: list[Event]) -> list[int]:
    return [one.message.conversation_seq for one in events]


def test_inbox_holds_a_conversation_back_until_its_history_was_read() -> None:
    """§8 (7): pushed, pulled and own events come after the history, whatever the cursor covers by then."""
    inbox = Inbox({"c": 3, "d": 1})
    inbox.open_history("c")
    assert inbox.history == inbox.changed == {"c": 3}
    assert inbox.pushed([event(20, "c", 9)]) == []
    assert inbox.pulled([event(19, "c", 8), event(20, "c", 9), event(21, "d", 2)], 21)[0].message == (
        event(21, "d", 2).message
    )
    own = event(0, "c", 10)
    assert inbox.own("c", 10, own.event_id, own._replace(mailbox_seq=-1)) == []
    inbox.disconnected()  # the cursor covers 8 and 9: they will not come again
    assert seqs(inbox.read("c", [message_of("c", 4), message_of("c", 6)], 6)) == [4, 6]
    assert not inbox.lacks("c")
    shown, gap = inbox.close_history("c", None)
    assert (seqs(shown), gap) == ([8, 9, 10], None)
    assert (inbox.history, inbox.changed, inbox.waiting, inbox.held) == ({}, {"c": None}, 0, 0)
    assert seqs(inbox.pushed([event(30, "c", 11)])) == [11]
    assert inbox.counters.reordered == inbox.counters.visible_duplicates == 0


def test_inbox_shows_what_history_and_mailbox_both_have_once_with_the_marks_of_both() -> None:
    """A message that was recalled meanwhile: its state comes from history, its flags from the mailbox."""
    inbox = Inbox({"c": 3})
    inbox.open_history("c")
    live = event(20, "c", 5)._replace(flags=1, mention_type=7)
    inbox.pushed([live])
    recalled = message_of("c", 5)
    recalled = recalled._replace(message=recalled.message._replace(state=2, body=b""))
    (four, five) = inbox.read("c", [message_of("c", 4), recalled], 5)
    assert four == message_of("c", 4)
    assert five == live._replace(message=recalled.message)
    assert inbox.close_history("c", None) == ([], None)
    assert inbox.pulled([event(20, "c", 5)], 20) == []


def test_inbox_after_the_history_still_waits_for_a_push_that_is_missing() -> None:
    """What came by push proves nothing about what is before it: an ordinary gap remains."""
    inbox = Inbox({"c": 3})
    inbox.open_history("c")
    inbox.pushed([event(20, "c", 7)])
    inbox.read("c", [message_of("c", 4)], 4)
    assert inbox.close_history("c", None) == ([], None)
    assert inbox.has_gap
    assert seqs(inbox.pulled([event(18, "c", 5), event(20, "c", 7)], 20)) == [5, 7]


def test_inbox_gives_history_up_with_a_gap_and_shows_what_it_has() -> None:
    inbox = Inbox({"c": 3})
    inbox.open_history("c")
    inbox.pushed([event(20, "c", 7), event(22, "c", 9)])
    shown, gap = inbox.close_history("c", "NOT_MEMBER")
    assert seqs(shown) == [7, 9]
    assert gap == ("c", 3, 7, "NOT_MEMBER")


def test_inbox_waiting_is_bounded_and_what_could_not_wait_is_read_or_marked() -> None:
    inbox = Inbox({"c": 1})
    inbox.open_history("c")
    inbox.pushed([event(n, "c", n) for n in range(3, 9_000)])
    assert inbox.waiting == 8_192
    assert inbox.held == 0
    assert not inbox.is_full
    assert inbox.lacks("c")
    assert len(inbox.read("c", [message_of("c", n) for n in range(2, 9_000)], 8_999)) == 8_998
    assert not inbox.lacks("c")
    assert inbox.close_history("c", None) == ([], None)
    inbox.open_history("c")
    inbox.pushed([event(n, "c", n) for n in range(9_001, 18_000)])
    shown, gap = inbox.close_history("c", None)
    assert (len(shown), gap) == (8_192, ("c", 8_999, None, "LIMIT"))


def test_inbox_knows_after_a_restart_what_is_still_to_be_read() -> None:
    inbox = Inbox({"c": 3}, history={"c": 5, "new": 0})
    assert inbox.pushed([event(20, "c", 6), event(21, "new", 1)]) == []
    assert seqs(inbox.read("c", [message_of("c", 6)], 6)) == [6]
    assert seqs(inbox.read("new", [message_of("new", 1)], 1)) == [1]


@pytest.mark.parametrize("own", [True, False])
def test_inbox_suspects_a_past_of_what_it_meets_only_when_told(own: bool) -> None:
    """An ack may repeat an old one: there, seq 1 says nothing about what follows it."""
    inbox = Inbox()
    inbox.pushed([event(0, "a", 5)])
    assert inbox.history == {}
    inbox.reads_unknown = True
    first = event(1, "b", 1)
    if own:
        assert inbox.own("b", 1, first.event_id, first) == []
        assert inbox.history == {"b": 0}
    else:
        assert seqs(inbox.pushed([first])) == [1]
    assert inbox.pushed([event(9, "c", 2)]) == []
    assert "c" in inbox.history


# -- pulls


@pytest.mark.parametrize("seed", range(40))
def test_pull_releases_the_range_once_in_order(seed: int) -> None:
    random = Random(seed)
    rows = sorted(random.sample(range(5_000), random.choice((0, 1, 30, 800))))
    after, up_to = random.randrange(-1, 200), random.randrange(4_000, 5_000)
    pull, waiting, released, covered, asked = RangePull(after, up_to), [], [], after, 0
    while not pull.done:
        waiting += pull.requests()
        assert 0 < len(waiting) <= 4, f"seed {seed}"
        part = waiting.pop(random.randrange(len(waiting)))
        asked += 1
        if random.random() < 0.1:
            pull.failed(part)
            continue
        inside = [row for row in rows if part.at < row <= part.up_to]
        limit = random.randrange(1, 40)
        cut = len(inside) > limit
        through = inside[limit - 1] if cut else part.up_to
        batch = MailboxBatch(1, [event(row, "c", row) for row in inside[:limit]], through, 9_999, cut)
        for stretch in pull.answer(part, batch):
            assert stretch.covered >= covered
            covered = stretch.covered
            released += [one.mailbox_seq for one in stretch.events]
    assert released == [row for row in rows if after < row <= up_to], f"seed {seed}"
    assert (covered, waiting) == (up_to, []), f"seed {seed}"


def test_pull_asks_for_more_at_once_when_it_knows_the_density() -> None:
    pull = RangePull(-1, 999)
    (first,) = pull.requests()
    pull.answer(first, MailboxBatch(1, [event(n, "c", n) for n in range(100)], 99, 999, True))
    parts = pull.requests()
    assert [(part.at, part.up_to) for part in parts] == [(99, 189), (189, 279), (279, 369), (369, 459)]
    full = MailboxBatch(1, [event(n, "c", n) for n in range(100, 190)], 189, 999, False)
    pull.answer(parts[0], full)
    (fifth,) = pull.requests()
    assert (fifth.at, fifth.up_to) == (459, 549)
    pull.answer(parts[1], MailboxBatch(1, [], 279, 999, False))  # thin: the next ones are wider
    (sixth,) = pull.requests()
    assert (sixth.at, sixth.up_to) == (549, 729)


@pytest.mark.parametrize(
    ("covered", "more", "entries"),
    [(9, True, []), (5, False, []), (10, True, []), (30, False, []), (20, False, [25]), (20, False, [10])],
)
def test_pull_refuses_answers_without_progress_or_out_of_range(
    covered: int, more: bool, entries: list[int]
) -> None:
    """C11: no endless pulling of the same page."""
    pull = RangePull(10, 20)
    (part,) = pull.requests()
    with pytest.raises(ProtocolError):
        pull.answer(part, MailboxBatch(1, [event(n, "c", n) for n in entries], covered, 99, more))


# -- sends


def add(queue: SendQueue, message: Outgoing) -> None:
    queue.admit(message)
    queue.queue(message)


def ack_of(frame: SendMessage) -> SendAck:
    return SendAck(frame.rid, frame.client_message_id, "c", b"." * 16, 1, 1)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("per_conversation", [1, 8])
def test_every_send_is_settled_once_and_in_order(seed: int, per_conversation: int) -> None:
    random = Random(seed)
    rids = count(1)
    queue = SendQueue(16, per_conversation, 1_000, answer_ms=50)
    accepted: dict[str, list[str]] = defaultdict(list)  # what the server took, first time, per conversation
    settled: list[str] = []
    for n in range(200):
        add(queue, Outgoing(f"m{n}", b"", f"c{random.randrange(5)}", None))
    open_frames: list[SendMessage] = []
    now = 0
    while len(queue):
        now += random.randrange(0, 20)
        queue.overdue(now)
        open_frames += queue.frames(now, lambda: next(rids))
        assert len(queue._flight) <= 16
        if random.random() < 0.02:
            queue.disconnected()
            open_frames.clear()
        if not open_frames:
            continue
        frame = open_frames.pop(0)
        fate = random.random()
        if fate < 0.1:
            asked = random.choice((None, 30))
            assert queue.refused(error("OVERLOADED", "", frame.rid, retry_after_ms=asked), now, 0.5) is None
            continue
        if frame.client_message_id not in accepted[frame.conversation_id or ""]:
            accepted[frame.conversation_id or ""].append(frame.client_message_id)
        if fate < 0.2:
            continue  # the ack is lost
        done = queue.acked(ack_of(frame))
        if done is not None:
            settled.append(done.client_message_id)
    assert sorted(settled) == sorted(f"m{n}" for n in range(200)), f"seed {seed}"
    if per_conversation == 1:
        for taken in accepted.values():
            assert taken == sorted(taken, key=lambda name: int(name[1:])), f"seed {seed}"
    assert not queue._lanes, f"seed {seed}"


def test_a_final_refusal_settles_and_the_next_goes_on() -> None:
    queue = SendQueue(16, 1, 10, 1_000)
    rids = count(1)
    add(queue, Outgoing("a", b"", "c", None))
    add(queue, Outgoing("b", b"", "c", None))
    (first,) = queue.frames(0, lambda: next(rids))
    refused = queue.refused(error("NOT_MEMBER", "", first.rid), 0, 0.5)
    assert refused is not None
    assert refused.client_message_id == "a"
    assert [frame.client_message_id for frame in queue.frames(0, lambda: next(rids))] == ["b"]
    assert queue.refused(error("NOT_MEMBER", "", 99), 0, 0.5) is None


def test_the_queue_is_bounded_and_refuses_a_second_use_of_an_id() -> None:
    queue = SendQueue(16, 1, 2, 1_000)
    add(queue, Outgoing("a", b"", "c", None))
    with pytest.raises(AdmissionRefused, match="CONFLICT"):
        add(queue, Outgoing("a", b"", "c", None))
    add(queue, Outgoing("b", b"", None, "bob"))
    with pytest.raises(AdmissionRefused, match="OVERLOADED") as caught:
        add(queue, Outgoing("x", b"", "c", None))
    assert caught.value.retry_after_ms == 1_000


# -- delays


def test_delays_are_bounded_and_never_below_what_the_server_asked_for() -> None:
    """I10."""
    assert [backoff_ms(n, 100, 1_000, 0.999) for n in (1, 2, 3, 4, 5, 60)] == [99, 199, 399, 799, 999, 999]
    assert backoff_ms(1, 100, 1_000, 0.0) == 0
    assert retry_ms(1, 100, 1_000, 5_000, 0.0) == 5_000
    assert 5_000 < retry_ms(1, 100, 1_000, 5_000, 0.9) <= 7_500


# -- coverage


def batch(covered: int, watermark: int) -> MailboxBatch:
    return MailboxBatch(1, [], covered, watermark, False)


def test_coverage_probes_and_then_pulls_what_the_probe_showed() -> None:
    coverage = Coverage(gap_grace_ms=10, checkpoint_events=100, checkpoint_interval_ms=1_000)
    coverage.restart(5, 5)
    coverage.reset_checkpoint(0)
    coverage.tick(999)
    assert coverage.requests(999) == []
    coverage.tick(1_000)
    (probe,) = coverage.requests(1_000)
    assert (probe.at, probe.up_to) == (5, 5)
    assert coverage.requests(1_000) == []
    assert coverage.answer(probe, batch(5, 9), 1_001) == []
    coverage.ended(False, 1_001)
    (part,) = coverage.requests(1_001)
    assert (part.at, part.up_to) == (5, 9)
    coverage.answer(part, batch(9, 9), 1_002)
    coverage.ended(False, 1_002)
    assert (coverage.pulled_to, coverage.is_pulling) == (9, False)


def test_what_is_wanted_goes_on_to_the_watermark_that_the_answers_show() -> None:
    """An event was pushed, the next ones were not: what is known above is old, and nothing else tells."""
    coverage = Coverage(gap_grace_ms=10, checkpoint_events=0, checkpoint_interval_ms=0)
    coverage.restart(5, 5)
    coverage.heard(7, 1)
    coverage.want(0)
    (part,) = coverage.requests(0)
    coverage.answer(part, batch(7, 20), 1)
    coverage.ended(False, 1)
    (rest,) = coverage.requests(1)
    assert (rest.at, rest.up_to) == (7, 20)
    coverage.answer(rest, batch(20, 30), 2)  # what came after the question is not chased
    coverage.ended(False, 2)
    assert (coverage.pulled_to, coverage.is_pulling) == (20, False)


def test_what_is_wanted_during_a_pull_begins_after_it() -> None:
    coverage = Coverage(gap_grace_ms=10, checkpoint_events=0, checkpoint_interval_ms=0)
    coverage.restart(5, 8)
    assert coverage.begin(8, 0, 0)
    (part,) = coverage.requests(0)
    coverage.want(1)
    coverage.answer(part, batch(8, 8), 2)
    coverage.ended(False, 2)
    (probe,) = coverage.requests(2)
    coverage.answer(probe, batch(8, 12), 3)
    coverage.ended(False, 3)
    (rest,) = coverage.requests(3)
    assert (rest.at, rest.up_to) == (8, 12)
    coverage.answer(rest, batch(12, 15), 4)
    coverage.ended(False, 4)
    assert (coverage.pulled_to, coverage.is_pulling) == (12, False)


def test_coverage_pulls_a_gap_after_its_grace_and_then_less_often() -> None:
    coverage = Coverage(gap_grace_ms=10, checkpoint_events=0, checkpoint_interval_ms=0)
    coverage.restart(0, 0)
    coverage.heard(7, 1)
    coverage.watch_gap(True, True, False, 90)  # weak: later
    coverage.watch_gap(True, False, False, 100)
    coverage.tick(105)
    assert not coverage.is_pulling
    coverage.tick(110)
    (part,) = coverage.requests(110)
    coverage.answer(part, batch(7, 7), 111)
    coverage.ended(True, 111)
    coverage.watch_gap(True, False, False, 111)
    coverage.tick(120)
    assert not coverage.is_pulling
    coverage.tick(130)
    assert coverage.is_pulling
    coverage.watch_gap(False, True, False, 131)
    assert not coverage.watches_gap


def test_coverage_waits_when_a_pull_is_refused_for_now() -> None:
    coverage = Coverage(10, 0, 0)
    coverage.restart(-1, 4)
    assert coverage.begin(4, 0, delay_ms=0)
    (part,) = coverage.requests(0)
    refusal: Error = error("STORE_UNAVAILABLE", "", 1, retry_after_ms=500)
    coverage.refused(part, refusal, 0, 0.0)
    assert coverage.requests(499) == []
    assert coverage.requests(500) == [part]


@pytest.mark.parametrize(
    ("headers", "expected_ms"),
    [
        ({"Retry-After": "7"}, 7_000),
        ({"Retry-After": "999999"}, RETRY_AFTER_MAX_MS),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "-1"}, 0),
        ({}, 0),
    ],
)
def test_a_server_that_is_too_busy_says_when_to_come_again(headers: dict[str, str], expected_ms: int) -> None:
    failure = aiohttp.WSServerHandshakeError(
        cast("aiohttp.RequestInfo", None), (), status=503, headers=cast("Any", headers)
    )
    assert _retry_after_ms(failure) == expected_ms
