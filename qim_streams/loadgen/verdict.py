"""The judgement: every acknowledged message against every member who should have it.

Joins the ledgers of all processes. For each conversation the acks say which places exist; a member who
was checked must have every place but those of his own messages. What was delivered without an ack, at
another place than its ack says, or after a refusal, is wrong.

Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from qim_streams.loadgen.ledger import Ledger
from qim_streams.loadgen.message import message_key
from qim_streams.loadgen.plan import Plan


class Missing(NamedTuple):
    """A member who lacks messages: how many, and one of their places."""

    user: int
    conversation: int
    messages: int
    first_seq: int


@dataclass(slots=True)
class Verdict:
    """Totals over all processes. `unknown`: sends whose outcome could not be found out."""

    sent: int = 0
    acked: int = 0
    refused: int = 0
    unknown: int = 0
    delivered_expected: int = 0
    delivered: int = 0
    pulled: int = 0
    duplicated_raw: int = 0
    duplicated_visible: int = 0
    reordered: int = 0
    wrong: int = 0
    overtaken: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    refusals: Counter[int] = field(default_factory=Counter)
    missing: list[Missing] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Deliveries that never came."""
        return sum(one.messages for one in self.missing)

    @property
    def clean(self) -> bool:
        """Whether every promise held and every outcome is known."""
        return not (
            self.lost or self.duplicated_visible or self.reordered or self.wrong or self.unknown
        ) and bool(self.acked)


_COUNTED = ("duplicated_raw", "duplicated_visible", "reordered")


def judge(plan: Plan, ledgers: Sequence[Ledger], checked: Iterable[int]) -> Verdict:
    """The verdict over `ledgers`. `checked`: users whose mailboxes must be complete."""
    result = Verdict()
    for ledger in ledgers:
        result.sent += ledger.sent
        result.acked += ledger.acked
        result.refused += len(ledger.refused)
        result.refusals.update(ledger.refused.values())
        result.unknown += ledger.sent - ledger.acked - len(ledger.refused)
        result.delivered += ledger.delivered
        result.pulled += ledger.pulled
        for name, count in ledger.counts.items():
            if name in _COUNTED:
                setattr(result, name, getattr(result, name) + count)
            else:
                result.reasons[name] += count
    places, own = _places(ledgers, result)
    _find_strangers(ledgers, places, result)
    _find_missing(plan, ledgers, places, own, set(checked), result)
    result.wrong = sum(result.reasons.values())
    return result


def _places(
    ledgers: Sequence[Ledger], result: Verdict
) -> tuple[dict[int, dict[int, int]], dict[tuple[int, int], int]]:
    """Conversation -> seq -> message key, and (user, conversation) -> mask of his own messages."""
    places: dict[int, dict[int, int]] = defaultdict(dict)
    own: dict[tuple[int, int], int] = defaultdict(int)
    mine: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for ledger in ledgers:
        for ack in ledger.acks():
            key = message_key(ledger.process, ack.number)
            if places[ack.conversation].setdefault(ack.seq, key) != key:
                result.reasons["two_acks_for_one_place"] += 1
            mine[ack.user, ack.conversation].append((ack.number, ack.seq))
    for whose, rows in mine.items():
        rows.sort()
        seqs = [seq for _, seq in rows]
        result.overtaken += sum(later < earlier for earlier, later in pairwise(seqs))
        own[whose] = _mask(seqs)
    return places, own


def _mask(seqs: Iterable[int]) -> int:
    top = max(seqs := list(seqs), default=-1)
    bits = bytearray(top // 8 + 1)
    for seq in seqs:
        bits[seq >> 3] |= 1 << (seq & 7)
    return int.from_bytes(bits, "little")


def _find_strangers(
    ledgers: Sequence[Ledger], places: Mapping[int, Mapping[int, int]], result: Verdict
) -> None:
    """What was delivered and is not what an ack says."""
    acked = {key: seq for rows in places.values() for seq, key in rows.items()}
    refused = {message_key(ledger.process, number) for ledger in ledgers for number in ledger.refused}
    for ledger in ledgers:
        for conversation, seen in ledger.seen.items():
            known = places.get(conversation, {})
            for seq, key in seen.items():
                if known.get(seq) == key:
                    continue
                if key in acked:
                    # Committed a second time, at another place: every device shows it twice.
                    result.duplicated_visible += 1
                elif key in refused:
                    result.reasons["delivered_after_refusal"] += 1
                elif seq in known:
                    result.reasons["another_message_than_acknowledged"] += 1


def _find_missing(
    plan: Plan,
    ledgers: Sequence[Ledger],
    places: Mapping[int, Mapping[int, int]],
    own: Mapping[tuple[int, int], int],
    checked: set[int],
    result: Verdict,
) -> None:
    masks = {conversation: _mask(seqs) for conversation, seqs in places.items()}
    got: dict[tuple[int, int], int] = defaultdict(int)
    for ledger in ledgers:
        for user, streams in ledger.streams.items():
            for conversation, stream in streams.items():
                got[user, conversation] |= stream.mask()
    for conversation, mask in masks.items():
        members = plan.conversations[conversation].members
        few = checked if isinstance(members, range) else (user for user in members if user in checked)
        for user in few:
            wanted = mask & ~own.get((user, conversation), 0)
            result.delivered_expected += wanted.bit_count()
            lacking = wanted & ~got.get((user, conversation), 0)
            if lacking:
                first = (lacking & -lacking).bit_length() - 1
                result.missing.append(Missing(user, conversation, lacking.bit_count(), first))
