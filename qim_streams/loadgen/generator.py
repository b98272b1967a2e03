"""One generator process without its commands: devices, account, latencies.

Invariants: a latency counts from the intended send time of the message; only messages whose intended
time lies in the measured part count as measured; every event is entered into the ledger.
"""

import random
import time
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

from qim_streams.client.discovery import StackAddress
from qim_streams.loadgen import message
from qim_streams.loadgen.device import Device, Pending
from qim_streams.loadgen.frames import DRIVERS
from qim_streams.loadgen.histogram import Histogram
from qim_streams.loadgen.ledger import Ledger
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.plan import Plan
from qim_streams.loadgen.traffic import Draw
from qim_streams.placement import mailbox_shard

SAMPLED_MAX = 20_000  # messages whose way into mailboxes is timed
_NS = 1_000_000_000


class Samples:
    """Deliveries to compare with the watermark: rows of (key, shard, mailbox_seq, intended_ns)."""

    def __init__(self) -> None:
        self.keys, self.shards = array("Q"), array("H")
        self.seqs, self.intended = array("Q"), array("Q")
        self._seen: set[int] = set()

    def add(self, key: int, shard: int, seq: int, intended_ns: int) -> None:
        """Note a delivery, once per message and shard."""
        name = key << 12 | shard
        if name not in self._seen:
            self._seen.add(name)
            self.keys.append(key)
            self.shards.append(shard)
            self.seqs.append(seq)
            self.intended.append(intended_ns)


class Generator:
    """See the module. `mailbox_shards` 0: the way into mailboxes is not timed."""

    def __init__(
        self,
        options: BenchOptions,
        plan: Plan,
        process: int,
        address: StackAddress,
        run: int,
        mailbox_shards: int,
    ) -> None:
        self.options, self.plan, self.process, self.address, self.run = options, plan, process, address, run
        self.driver = DRIVERS[options.encoding]
        self.url = address.require_url()
        self.clock_ns: Callable[[], int] = time.monotonic_ns
        self.ledger = Ledger(process)
        self.noted: Counter[str] = Counter()
        self.devices: dict[int, Device] = {}
        self.number = 0
        self.ack_by_second: dict[int, Histogram] = {}
        self.e2e_by_second: dict[int, Histogram] = {}
        self.late = Histogram()
        self.samples = Samples()
        self.measured = (0, 0)  # first and end, ns of the monotonic clock
        self.reading = False  # mailboxes are read afterwards: what is found has no latency
        self.promised = 0  # deliveries that the acks so far promise to online members
        self.measured_sent = 0
        seconds = range(int(options.duration_s) + 1)
        self.acked_at = array("Q", (0 for _ in seconds))  # by the second in which they came
        self.delivered_at = array("Q", (0 for _ in seconds))
        self._numbers = {one.conversation_id: number for number, one in enumerate(plan.conversations)}
        self._targets: dict[int, Any] = {}
        self._online_of: dict[int, int] = {}
        self._prefix = f"{run:08x}-{process:02x}-".encode()
        self._shards = mailbox_shards
        self._shard_of: dict[int, int] = {}
        total = max(1, int(options.rate * options.duration_s))
        self._stride = max(1, -(-total // SAMPLED_MAX))

    # -- sending

    def send(self, draw: Draw, intended_ns: int) -> Device:
        """Queue a message on its sender's device; flush the device afterwards."""
        return self._queue(draw, intended_ns, self.target(draw.conversation))

    def _queue(self, draw: Draw, intended_ns: int, target: Any) -> Device:
        number = self.number
        self.number += 1
        body = message.body(self.run, self.process, number, intended_ns, draw.size)
        pending = Pending(intended_ns, draw.conversation, target, body)
        self.ledger.sent += 1
        if self.measured[0] <= intended_ns < self.measured[1]:
            self.measured_sent += 1
        device = self.devices[draw.user]
        device.send(number, pending)
        return device

    def open_chat(self, conversation: int, user: int, partner: int, size: int) -> Device:
        """Queue the first message of a direct chat, which may not exist yet."""
        target = self.driver.target_of(None, self.plan.user_id(partner))
        return self._queue(Draw(user, conversation, size), self.clock_ns(), target)

    def target(self, conversation: int) -> Any:
        """Where messages of a conversation go."""
        target = self._targets.get(conversation)
        if target is None:
            target = self._targets[conversation] = self.driver.target_of(
                self.plan.conversations[conversation].conversation_id, None
            )
        return target

    @property
    def waiting(self) -> int:
        """Sends without a final answer."""
        return self.ledger.sent - self.ledger.acked - len(self.ledger.refused)

    # -- what devices report

    def client_message_id(self, number: int) -> bytes:
        """See `Owner`."""
        return self._prefix + b"%x" % number

    def token(self, user: int) -> str:
        """See `Owner`."""
        return self.address.token(self.plan.user_id(user))

    def acked(self, device: Device, number: int, pending: Pending, seq: int, now_ns: int) -> None:
        """See `Owner`."""
        self.ledger.ack(number, device.user, pending.conversation, seq)
        self.promised += self._online(pending.conversation) - 1
        first_ns, end_ns = self.measured
        if first_ns <= now_ns < end_ns:
            self.acked_at[(now_ns - first_ns) // _NS] += 1
        if first_ns <= pending.intended_ns < end_ns:
            second = (pending.intended_ns - first_ns) // _NS
            part = self.ack_by_second.get(second)
            if part is None:
                part = self.ack_by_second[second] = Histogram()
            part.add((now_ns - pending.intended_ns) // 1_000)

    def _online(self, conversation: int) -> int:
        count = self._online_of.get(conversation)
        if count is None:
            count = self._online_of[conversation] = len(self.plan.online_of(conversation))
        return count

    def refused(self, device: Device, number: int, pending: Pending, code: int) -> None:
        """See `Owner`."""
        self.ledger.refused[number] = code

    def note(self, what: str) -> None:
        """See `Owner`."""
        self.noted[what] += 1

    def event(self, device: Device, event: dict[str, Any], now_ns: int, fresh: bool, live: bool) -> None:
        """See `Owner`."""
        body = event["message"]
        if body["sender_id"] == device.user_id:
            return  # our own, from a mailbox that was read
        read = message.read_key(body["body"], self.run)
        conversation = self._numbers.get(body["conversation_id"])
        if read is None or conversation is None:
            self._strange(body["body"])
            return
        key, intended_ns = read
        if not self.ledger.deliver(device.user, conversation, body["conversation_seq"], key, fresh, live):
            return
        first_ns, end_ns = self.measured
        if first_ns <= now_ns < end_ns:
            self.delivered_at[(now_ns - first_ns) // _NS] += 1
        if first_ns <= intended_ns < end_ns and not self.reading:
            second = (intended_ns - first_ns) // _NS
            part = self.e2e_by_second.get(second)
            if part is None:
                part = self.e2e_by_second[second] = Histogram()
            part.add((now_ns - intended_ns) // 1_000)
            if self._shards and not (key & 0xFFFF_FFFF) % self._stride:
                self._sample(device.user, key, event["mailbox_seq"], intended_ns)

    def _strange(self, body: bytes) -> None:
        head = message.read(body)
        if head is None:
            self.ledger.counts["damaged"] += 1
        elif head.run == self.run:
            self.ledger.counts["in_a_foreign_conversation"] += 1
        else:
            self.noted["of_an_earlier_run"] += 1

    def _sample(self, user: int, key: int, seq: int, intended_ns: int) -> None:
        shard = self._shard_of.get(user)
        if shard is None:
            shard = mailbox_shard(self.plan.tenant, self.plan.user_id(user), self._shards)
            self._shard_of[user] = shard
        self.samples.add(key, shard, seq, intended_ns)

    # -- devices

    def new_device(self, user: int) -> Device:
        """A device of a user, not connected."""
        return Device(self, user, self.plan.user_id(user))

    def rng(self, what: str) -> random.Random:
        """A source of chance that depends on the seed, the process and the purpose only."""
        return random.Random(f"{what}-{self.options.seed}-{self.process}")
