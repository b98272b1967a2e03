"""The oracle: what every mailbox must hold, computed a second time from the acts of a history.

Written from the contract alone; it shares no code with the pipeline. A user gets the message with
conversation_seq s exactly when one of his stays covers it: joined_seq < s <= left_seq, where both are
the conversation's last seq at the moment of the change. A send with outcome ``info`` may have happened
or not, but for all members alike. Each checker takes the acts, the mailboxes in the order they were
read, and the Outbox in offset order (may be empty); it returns one sentence per violation.

Spec: §2 to §5. I1 no lost ack, I2 no phantom, I3 one per key, I5 order, I11 membership.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Place = tuple[str, int]  # conversation_id, conversation_seq
FOREVER = 2**63


class Act(NamedTuple):
    """A join, leave or send. The place of a join or leave is the last one before the change.

    `key` is the unique payload of a send; without an ack its seq is 0 and `message_id` empty.
    """

    kind: str  # join, leave, send
    place: Place
    user_id: str
    key: str = ""
    message_id: bytes = b""
    outcome: str = "ok"  # ok, fail, info


class Seen(NamedTuple):
    """An entry as `reader` got it. `key` comes from its body, `at` is (mailbox_seq, event_ordinal)."""

    reader: str
    at: tuple[int, int]
    event_id: bytes
    place: Place
    message_id: bytes
    sender_id: str
    key: str


Logged = tuple[str, int, bytes]  # conversation_id, conversation_seq, message_id
Checker = Callable[[Sequence[Act], Sequence[Seen], Sequence[Logged]], list[str]]
Stays = Mapping[str, Mapping[str, list[list[int]]]]  # conversation -> user -> [joined_seq, left_seq]


def stays(acts: Sequence[Act]) -> Stays:
    """Who was a member when, as spans [joined_seq (exclusive), left_seq (inclusive)]."""
    result: dict[str, dict[str, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    for act in acts:
        spans = result[act.place[0]][act.user_id]
        if act.kind == "join" and (not spans or spans[-1][1] != FOREVER):
            spans.append([act.place[1], FOREVER])
        elif act.kind == "leave" and spans and spans[-1][1] == FOREVER:
            spans[-1][1] = act.place[1]
    return result


def _covers(spans: Sequence[Sequence[int]], seq: int) -> bool:
    return any(joined < seq <= left for joined, left in spans)


def expected_mailboxes(acts: Sequence[Act]) -> dict[str, set[Place]]:
    """Per user what the acknowledged sends put into his mailbox."""
    result: dict[str, set[Place]] = defaultdict(set)
    members = stays(acts)
    for act in acts:
        if act.kind == "send" and act.outcome == "ok":
            for user, spans in members[act.place[0]].items():
                if _covers(spans, act.place[1]):
                    result[user].add(act.place)
    return result


def no_lost_ack(acts: Sequence[Act], seen: Sequence[Seen], _: Sequence[Logged]) -> list[str]:
    """I1: each acknowledged send, and each uncertain one that anybody has, is with every member."""
    unsure = {act.key for act in acts if act.kind == "send" and act.outcome == "info"}
    surfaced = {one.key: Act("send", one.place, one.sender_id) for one in seen if one.key in unsure}
    has = {(one.reader, one.place) for one in seen}
    wanted = expected_mailboxes([*acts, *surfaced.values()])
    missing = ((user, place) for user in wanted for place in wanted[user] if (user, place) not in has)
    return [f"I1: {user} lacks {place}" for user, place in sorted(missing)]


def no_phantom(acts: Sequence[Act], seen: Sequence[Seen], _: Sequence[Logged]) -> list[str]:
    """I2: every entry traces to a send that was ok or uncertain, as its ack named it."""
    sends = {act.key: act for act in acts if act.kind == "send"}
    bad = []
    for one in seen:
        send = sends.get(one.key)
        if send is None or send.outcome == "fail":
            bad.append(f"I2: {one.reader} has {one.key!r}, which was {'refused' if send else 'never sent'}")
        elif (send.place[0], send.user_id) != (one.place[0], one.sender_id):
            bad.append(f"I2: {one.reader} has {one.key!r} under another conversation or sender")
        elif send.outcome == "ok" and (send.place, send.message_id) != (one.place, one.message_id):
            bad.append(f"I2: {one.reader} has {one.key!r} at {one.place}, its ack said {send.place}")
    return bad


def one_per_key(acts: Sequence[Act], seen: Sequence[Seen], log: Sequence[Logged]) -> list[str]:
    """I3: a key has one id and place, a place has one id, a reader has each event and message once."""
    named: list[Act | Seen] = [*seen, *(act for act in acts if act.message_id)]
    values: dict[object, set[object]] = defaultdict(set)
    for one in named:
        values[one.key].add((one.message_id, one.place))
        values[one.place].add(one.message_id)
    for conversation, seq, message_id in log:
        values[conversation, seq].add(message_id)
    counts = Counter((one.reader, which.hex()) for one in seen for which in (one.event_id, one.message_id))
    many = [f"I3: {key} has {len(found)} values" for key, found in values.items() if len(found) > 1]
    return many + [f"I3: {key} is there {count} times" for key, count in counts.items() if count > 1]


def in_order(acts: Sequence[Act], seen: Sequence[Seen], log: Sequence[Logged]) -> list[str]:
    """I5: Outbox order (repeats left out) = seq order = message_id order; a mailbox in its seq order."""
    acked = sorted((*act.place, act.message_id) for act in acts if act.message_id)
    bad = []
    for name, rows in (("ack", acked), ("Outbox", log)):
        last: dict[str, tuple[int, bytes]] = defaultdict(lambda: (0, b""))
        for conversation, seq, message_id in dict.fromkeys(rows):
            if seq <= last[conversation][0] or message_id <= last[conversation][1]:
                bad.append(f"I5: {name} order of {conversation} breaks at {seq}")
            last[conversation] = (seq, message_id)
    at: dict[object, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    for one in seen:
        heard = (one.reader, one.place[0])
        if one.at <= at[one.reader] or one.place[1] <= at[heard][0]:
            bad.append(f"I5: {one.reader} reads {one.place} at {one.at} out of order")
        at[one.reader], at[heard] = one.at, (one.place[1], 0)
    return bad


def only_members(acts: Sequence[Act], seen: Sequence[Seen], _: Sequence[Logged]) -> list[str]:
    """I11: no entry outside the stays of its reader (that none is missing inside them is I1)."""
    members = stays(acts)
    outside = [one for one in seen if not _covers(members[one.place[0]][one.reader], one.place[1])]
    return [f"I11: {one.reader} has {one.place} and was no member then" for one in outside]


CHECKERS: Sequence[Checker] = (no_lost_ack, no_phantom, one_per_key, in_order, only_members)


def violations(acts: Sequence[Act], seen: Sequence[Seen], log: Sequence[Logged] = ()) -> list[str]:
    """What all checkers say."""
    return [text for checker in CHECKERS for text in checker(acts, seen, log)]
