"""Messages on their way out: sent, repeated with the same client_message_id, and settled once.

A message is admitted, and queued once it is kept (so that a restart cannot lose what a server may have
got). Then it waits in the lane of its conversation, is in flight under a request id, and comes back to its
lane when the connection is lost, the answer is late, or the server says "not now". With
``per_conversation = 1`` (the default of the client) a conversation's messages reach the server in the
order they were given; with more in flight the order holds unless one of them must be repeated.

Invariants: a message is settled exactly once, by an ack or a final refusal; while it is queued and not
settled, it is in exactly one of lane, flight; at most ``inflight_max`` are unanswered and ``waiting_max``
kept in all. Time comes in as monotonic milliseconds.

Spec: §3 (5). Scenarios C1 C4.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from qim_streams.client.backoff import retry_ms
from qim_streams.errors import AdmissionRefused
from qim_streams.mentions import decode_mentions
from qim_streams.records import KIND_EDIT, KIND_MESSAGE
from qim_streams.wire.frames import Error, SendAck, SendMessage
from qim_streams.wire.frames_changes import EditMessage, RecallMessage

RETRY_BASE_MS = 200
RETRY_CAP_MS = 15_000
SendFrame = SendMessage | EditMessage | RecallMessage


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message to send. `settled` is called once with the SEND_ACK or the final ERROR."""

    client_message_id: str
    body: bytes
    conversation_id: str | None
    to_user_id: str | None
    kind: int = KIND_MESSAGE
    target_seq: int | None = None  # of an edit or recall
    mentions: bytes = b""
    settled: Callable[["Outgoing", SendAck | Error], None] | None = None
    number: int = 0  # order of arrival; 0: admitted, not queued
    attempts: int = 0
    rid: int = 0
    sent_ms: int = 0

    def frame(self) -> SendFrame:
        """The frame that asks for it, under the request id that it has now."""
        name, place = self.client_message_id, self.conversation_id
        if self.kind == KIND_MESSAGE:
            users, everybody = decode_mentions(self.mentions)
            named = list(users) or None
            return SendMessage(self.rid, name, self.body, place, self.to_user_id, named, everybody)
        assert place is not None
        assert self.target_seq is not None
        if self.kind == KIND_EDIT:
            return EditMessage(self.rid, name, place, self.target_seq, self.body)
        return RecallMessage(self.rid, name, place, self.target_seq)

    @property
    def target(self) -> str:
        """Names the lane; the two kinds of target cannot collide."""
        return self.conversation_id or f">{self.to_user_id}"


@dataclass(slots=True, eq=False)
class _Lane:
    """The messages of one conversation that are not in flight, oldest first."""

    target: str
    queue: deque[Outgoing] = field(default_factory=deque)
    inflight: int = 0
    listed: bool = False  # in `SendQueue._ready`
    parked: bool = False  # in `SendQueue._parked`: the server said "not now"

    def put_back(self, message: Outgoing) -> None:
        """Return a message to its place in the order."""
        passed = []
        while self.queue and self.queue[0].number < message.number:
            passed.append(self.queue.popleft())
        self.queue.appendleft(message)
        self.queue.extendleft(reversed(passed))


class SendQueue:
    """The outgoing messages of one device, across connections."""

    def __init__(self, inflight_max: int, per_conversation: int, waiting_max: int, answer_ms: int) -> None:
        self._inflight_max, self._per_conversation = inflight_max, per_conversation
        self._waiting_max, self._answer_ms = waiting_max, answer_ms
        self._by_id: dict[str, Outgoing] = {}
        self._flight: dict[int, Outgoing] = {}
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._parked: list[tuple[int, int, _Lane]] = []  # heap of (due, tie-break, lane)
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def is_full(self) -> bool:
        """Whether `add` would refuse."""
        return len(self._by_id) >= self._waiting_max

    def admit(self, message: Outgoing) -> None:
        """Reserve room; AdmissionRefused when full or when its id is on its way already."""
        if message.client_message_id in self._by_id:
            raise AdmissionRefused(
                "CLIENT_MESSAGE_ID_CONFLICT",
                f"{message.client_message_id} is being sent; wait for its receipt",
            )
        if self.is_full:
            raise AdmissionRefused(
                "OVERLOADED",
                f"{self._waiting_max} messages wait to be sent; send slower",
                retry_after_ms=1_000,
            )
        self._by_id[message.client_message_id] = message

    def queue(self, message: Outgoing) -> None:
        """An admitted message may go; without effect when it was cancelled meanwhile."""
        if self._by_id.get(message.client_message_id) is not message:
            return
        self._numbers += 1
        message.number = self._numbers
        lane = self._lane(message.target)
        lane.queue.append(message)
        self._list(lane)

    def restore(self, message: Outgoing) -> None:
        """Queue a message of an earlier process, whatever the bounds are today."""
        self._by_id[message.client_message_id] = message
        self.queue(message)

    def frames(self, now_ms: int, next_rid: Callable[[], int]) -> list[SendFrame]:
        """The frames to send now; their messages are in flight from here on."""
        while self._parked and self._parked[0][0] <= now_ms:
            lane = heapq.heappop(self._parked)[2]
            lane.parked = False
            self._list(lane)
        frames: list[SendFrame] = []
        while self._ready and len(self._flight) < self._inflight_max:
            lane = self._ready.popleft()
            lane.listed = False
            if lane.parked or not lane.queue:
                self._list(lane)
                continue
            message = lane.queue.popleft()
            lane.inflight += 1
            message.rid, message.sent_ms = next_rid(), now_ms
            message.attempts += 1
            self._flight[message.rid] = message
            frames.append(message.frame())
            self._list(lane)
        return frames

    def acked(self, ack: SendAck) -> Outgoing | None:
        """The message that an ack settles, taken out; None when it is settled already."""
        message = self._by_id.get(ack.client_message_id)
        if message is None:
            return None
        self._take_out(message)
        return message

    def refused(self, error: Error, now_ms: int, random: float) -> Outgoing | None:
        """The message that a final error settles, taken out; None when it will be repeated or is unknown."""
        message = self._flight.get(error.rid) if error.rid is not None else None
        if message is None:
            return None
        if not error.temporary:
            self._take_out(message)
            return message
        delay = retry_ms(message.attempts, RETRY_BASE_MS, RETRY_CAP_MS, error.retry_after_ms, random)
        lane = self._return(message)
        if not lane.parked:
            lane.parked = True
            self._numbers += 1
            heapq.heappush(self._parked, (now_ms + delay, self._numbers, lane))
        return None

    def overdue(self, now_ms: int) -> int:
        """Take back what was sent `answer_ms` ago or earlier and not answered; returns how many."""
        late = []
        for message in self._flight.values():
            if now_ms - message.sent_ms < self._answer_ms:
                break
            late.append(message)
        for message in reversed(late):
            self._list(self._return(message))
        return len(late)

    def disconnected(self) -> None:
        """Take back everything that is in flight: the next connection sends it again."""
        for message in reversed(list(self._flight.values())):
            self._list(self._return(message))

    def cancel(self, client_message_id: str) -> bool:
        """Stop repeating a message; False when it is settled. It may have been sent: outcome unknown."""
        message = self._by_id.get(client_message_id)
        if message is None:
            return False
        self._take_out(message)
        return True

    def drain(self) -> Iterable[Outgoing]:
        """Take out everything, in order of arrival."""
        left = sorted(self._by_id.values(), key=lambda message: message.number)
        for message in left:
            self._take_out(message)
        return left

    def _lane(self, target: str) -> _Lane:
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = _Lane(target)
        return lane

    def _list(self, lane: _Lane) -> None:
        """Put a lane where it belongs: to the ready ones, nowhere, or out of memory."""
        if lane.parked or lane.listed:
            return
        if lane.queue and lane.inflight < self._per_conversation:
            lane.listed = True
            self._ready.append(lane)
        elif not lane.queue and not lane.inflight:
            self._lanes.pop(lane.target, None)

    def _return(self, message: Outgoing) -> _Lane:
        del self._flight[message.rid]
        lane = self._lanes[message.target]
        lane.inflight -= 1
        lane.put_back(message)
        return lane

    def _take_out(self, message: Outgoing) -> None:
        del self._by_id[message.client_message_id]
        if not message.number:
            return
        lane = self._lanes[message.target]
        if self._flight.get(message.rid) is message:
            del self._flight[message.rid]
            lane.inflight -= 1
        else:
            lane.queue.remove(message)
        self._list(lane)
