"""The account of one generator process: what was sent and answered, what its devices received.

A message is named by its process and number; its place is (conversation, conversation_seq), which the
SEND_ACK says. A device keeps one bit per conversation_seq of each of its conversations (`Stream`); the
process keeps which message it saw at each place, shared by its devices. ``verdict`` joins the accounts of
all processes.

Counted at once, because only the order of arrival shows it: a repeat on the wire (same mailbox position:
a client drops it), a visible duplicate (the same place under a new mailbox position), a step back in
conversation_seq on a live stream, damaged bodies, two messages at one place.

Memory: about 150 bytes per message and process, and one bit per delivery. Pure.
"""

from array import array
from collections import Counter
from typing import NamedTuple


class Stream:
    """What one device received of one conversation. `bits` start at conversation_seq `base`."""

    __slots__ = ("base", "bits", "last")

    def __init__(self, first: int) -> None:
        self.base = first & ~7
        self.last = 0
        self.bits = bytearray(8)

    def add(self, seq: int) -> bool:
        """Note a seq; False when it was there before."""
        at = seq - self.base
        if at < 0:
            self._extend_down(seq)
            at = seq - self.base
        place = at >> 3
        if place >= len(self.bits):
            self.bits.extend(bytes(max(8, place + 1 - len(self.bits), len(self.bits) // 4)))
        mask = 1 << (at & 7)
        if self.bits[place] & mask:
            return False
        self.bits[place] |= mask
        return True

    def _extend_down(self, seq: int) -> None:
        base = seq & ~7
        self.bits = bytearray((self.base - base) >> 3) + self.bits
        self.base = base

    def mask(self) -> int:
        """Every received seq as a bit of an integer, bit 0 = conversation_seq 0."""
        return int.from_bytes(self.bits, "little") << self.base


class Ack(NamedTuple):
    """A message whose SEND_ACK came."""

    conversation: int
    seq: int
    number: int
    user: int


class Ledger:
    """See the module. `counts`: what went wrong, by name."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.counts: Counter[str] = Counter()
        self.streams: dict[int, dict[int, Stream]] = {}  # user -> conversation -> stream
        self.seen: dict[int, dict[int, int]] = {}  # conversation -> seq -> message key
        self.sent = 0
        self.delivered = 0
        self.pulled = 0
        self.acked_conversations = array("I")
        self.acked_seqs = array("Q")
        self.acked_numbers = array("I")
        self.acked_users = array("I")
        self.refused: dict[int, int] = {}  # number -> error code

    def ack(self, number: int, user: int, conversation: int, seq: int) -> None:
        """A SEND_ACK came."""
        self.acked_conversations.append(conversation)
        self.acked_seqs.append(seq)
        self.acked_numbers.append(number)
        self.acked_users.append(user)

    @property
    def acked(self) -> int:
        """How many messages are acknowledged."""
        return len(self.acked_numbers)

    def acks(self) -> list[Ack]:
        """Every ack."""
        rows = zip(
            self.acked_conversations, self.acked_seqs, self.acked_numbers, self.acked_users, strict=True
        )
        return [Ack(*row) for row in rows]

    def deliver(self, user: int, conversation: int, seq: int, key: int, fresh: bool, live: bool) -> bool:
        """Note a delivery; whether it is the first one.

        `fresh`: its mailbox position is above everything the device had; `live`: it came by push.
        """
        known = self.seen.get(conversation)
        if known is None:
            known = self.seen[conversation] = {}
        if known.setdefault(seq, key) != key:
            self.counts["two_messages_at_one_place"] += 1
        streams = self.streams.get(user)
        if streams is None:
            streams = self.streams[user] = {}
        stream = streams.get(conversation)
        if stream is None:
            stream = streams[conversation] = Stream(seq)
        if not stream.add(seq):
            if live:
                self.counts["duplicated_visible" if fresh else "duplicated_raw"] += 1
            return False
        if seq > stream.last:
            stream.last = seq
        elif live:
            self.counts["reordered"] += 1
        if live:
            self.delivered += 1
        else:
            self.pulled += 1
        return True
