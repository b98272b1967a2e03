"""What a run left behind, and what is wrong with it: every check of the system-level tests in one place.

The judges are the oracle (I1 I2 I3 I5 I11 over the final mailboxes and the Outbox) and the checks below,
which look at what the oracle does not see: the Outbox alone (I4), order in real time, repeated answers,
what each device was shown, what probes read while things went wrong (I6), contents of entries.

Members are derived from the log: a change that was answered with version V took effect after the last
message whose record carries a lower version. That this fits the times of the answers is checked as well.

Spec: §2 to §7. Each check returns one sentence per violation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qim_streams.client import RebuildRequired, SyncFinished
from qim_streams.ids import direct_conversation_id
from qim_streams.records import RECIPIENT_FLAGS, SENDER_FLAGS
from qim_streams.testing.history import Operation
from qim_streams.testing.oracle import Act, Place, Seen, violations
from qim_streams.wire.frames import Event
from tests.support.checkers import event_id_of
from tests.support.device import Device, body_of
from tests.support.logs import Logged
from tests.support.traffic import Probe

SENDS = ("send", "repeat")


@dataclass(slots=True)
class Evidence:
    """All that is known at the end. `mailboxes`: every user's mailbox, read to its end by a new device."""

    tenant: str
    body_bytes_max: int
    operations: Sequence[Operation]
    outbox: Sequence[Logged]
    mailboxes: Mapping[str, Sequence[Event]]
    devices: Sequence[Device] = ()
    probes: Sequence[Probe] = ()
    seen_while_running: Sequence[str] = ()  # violations that were noticed on the way
    rebuilds_allowed: bool = False  # a cursor above a W that fell back may be refused, explicitly (P7)
    keys: dict[str, list[Operation]] = field(init=False)  # client_message_id -> send and repeats

    def __post_init__(self) -> None:
        self.keys = defaultdict(list)
        for operation in self.operations:
            if operation.op in SENDS:
                self.keys[operation.value["key"]].append(operation)

    def conversation(self, operation: Operation) -> str:
        """The conversation that a send goes to."""
        value = operation.value
        return value["conversation"] or direct_conversation_id(self.tenant, value["user"], value["to"])


def problems(evidence: Evidence) -> list[str]:
    """Everything that is wrong, the most telling first."""
    acts, seen = acts_of(evidence), list(entries_of(evidence))
    logged = [
        (one.message.conversation_id, one.message.conversation_seq, one.message.message_id)
        for one in evidence.outbox
    ]
    found = violations(acts, seen, logged)
    for check in (
        acked_is_logged,
        outbox_is_dense,
        receipts_agree,
        order_in_time,
        changes_in_time,
        entries_are_right,
        devices_saw_all,
        probes_were_prefixes,
    ):
        found += check(evidence)
    return found + list(evidence.seen_while_running)


def acts_of(evidence: Evidence) -> list[Act]:
    """The acts of the history in the order in which changes took effect, with the places of the log."""
    changes = [
        (operation.result["version"], operation.op, operation.value["conversation"], user)
        for operation in evidence.operations
        if operation.op in ("create", "join", "leave") and operation.phase == "ok"
        for user in operation.value.get("members", [operation.value.get("user")])
    ]
    chats = {
        (evidence.conversation(operation), user)
        for operation in evidence.operations
        if operation.op in SENDS and operation.value["to"]
        for user in (operation.value["user"], operation.value["to"])
    }
    acts = [Act("join", (conversation, 0), user) for conversation, user in sorted(chats)]
    for version, op, conversation, user in sorted(changes):
        seq = 0 if op == "create" else last_before(evidence.outbox, conversation, version)
        acts.append(Act("leave" if op == "leave" else "join", (conversation, seq), user))
    return acts + [act for key in evidence.keys for act in _sends_of(evidence, key)]


def last_before(outbox: Iterable[Logged], conversation: str, version: int) -> int:
    """The last seq of a conversation that was sent under a lower membership version; 0 for none."""
    seqs = [
        one.message.conversation_seq
        for one in outbox
        if one.message.conversation_id == conversation and one.message.membership_version < version
    ]
    return max(seqs, default=0)


def _sends_of(evidence: Evidence, key: str) -> Iterator[Act]:
    """One act per answer; none was positive: refused for good if any answer said so, else unknown."""
    operations = evidence.keys[key]
    user, conversation = operations[0].value["user"], evidence.conversation(operations[0])
    answered = [one.result for one in operations if one.phase == "ok"]
    for result in answered:
        place = (result["conversation"], result["seq"])
        yield Act("send", place, user, key, bytes.fromhex(result["message_id"]))
    if not answered:
        outcome = "fail" if any(one.phase == "fail" for one in operations) else "info"
        yield Act("send", (conversation, 0), user, key, outcome=outcome)


def key_of(event: Event) -> str:
    """The unique key in a payload."""
    return event.message.body.partition(b"|")[0].decode(errors="replace")


def entries_of(evidence: Evidence) -> Iterator[Seen]:
    """The final mailboxes as the oracle wants them."""
    for user, events in evidence.mailboxes.items():
        for event in events:
            message = event.message
            place: Place = (message.conversation_id, message.conversation_seq)
            at = (event.mailbox_seq, event.event_ordinal)
            yield Seen(user, at, event.event_id, place, message.message_id, message.sender_id, key_of(event))


# -- the log


def acked_is_logged(evidence: Evidence) -> list[str]:
    """I1, first half: an acknowledged message is in the Outbox, as its ack named it."""
    logged = {one.message.client_message_id: one.message for one in evidence.outbox}
    bad = []
    for act in acts_of(evidence):
        if act.kind == "send" and act.outcome == "ok":
            message = logged.get(act.key)
            if message is None:
                bad.append(f"I1: {act.key} was acknowledged as {act.place} and is not in the Outbox")
            elif (message.conversation_id, message.conversation_seq) != act.place:
                bad.append(f"I1: {act.key} was acknowledged as {act.place}, the Outbox has another place")
    return bad


def outbox_is_dense(evidence: Evidence) -> list[str]:
    """I4: seqs 1..n without a hole, first copies in offset order of one partition, repeats byte-equal."""
    bad = []
    first: dict[Place, bytes] = {}
    last: dict[str, int] = defaultdict(int)
    version: dict[str, int] = defaultdict(int)
    partition: dict[str, int] = {}
    for one in evidence.outbox:
        message, conversation = one.message, one.message.conversation_id
        place = (conversation, message.conversation_seq)
        if partition.setdefault(conversation, one.partition) != one.partition:
            bad.append(f"I4: {conversation} is in partitions {partition[conversation]} and {one.partition}")
        if place in first:
            if first[place] != one.raw:
                bad.append(f"I3: {place} is in the Outbox with two contents")
            continue
        first[place] = one.raw
        if message.conversation_seq != last[conversation] + 1:
            bad.append(f"I4: {place} follows {last[conversation]} in the Outbox")
        if message.membership_version < version[conversation]:
            bad.append(f"I11: the membership version of {place} is lower than the one before")
        last[conversation] = message.conversation_seq
        version[conversation] = message.membership_version
    return bad


# -- the answers


def receipts_agree(evidence: Evidence) -> list[str]:
    """P2: every answer to one client_message_id is the same, field by field."""
    bad = []
    for key, operations in evidence.keys.items():
        answers = [one.result for one in operations if one.phase == "ok"]
        if any(answer != answers[0] for answer in answers):
            bad.append(f"P2: {key} was answered {answers}")
    return bad


def order_in_time(evidence: Evidence) -> list[str]:
    """I5: what was answered before another send began is before it; a device's sends keep their order."""
    bad = []
    lanes: dict[tuple[str, str], list[tuple[int, int, int, str]]] = defaultdict(list)
    for operation in evidence.operations:
        if operation.op == "send" and operation.phase == "ok":
            assert operation.end_ns is not None
            row = (operation.start_ns, operation.end_ns, operation.result["seq"], operation.value["key"])
            lanes["", operation.result["conversation"]].append(row)
            lanes[operation.process, operation.result["conversation"]].append(row)
    for (process, conversation), rows in lanes.items():
        if process:
            order = [seq for _, _, seq, _ in sorted(rows)]
            if order != sorted(order):
                bad.append(f"I5: {process} sent to {conversation} in order and got seqs {order}")
            continue
        by_seq = sorted(rows, key=lambda row: row[2])
        latest_start = (0, "")
        for start_ns, end_ns, seq, key in by_seq:
            if end_ns < latest_start[0]:
                bad.append(f"I5: {key} ({conversation} {seq}) was answered before {latest_start[1]} began")
            latest_start = max(latest_start, (start_ns, key))
    return bad


def changes_in_time(evidence: Evidence) -> list[str]:
    """I11: a change takes effect between its call and its answer."""
    bad = []
    sends: dict[str, list[Operation]] = defaultdict(list)
    for operation in evidence.operations:
        if operation.op == "send" and operation.phase == "ok":
            sends[operation.result["conversation"]].append(operation)
    for change in evidence.operations:
        if change.op not in ("join", "leave") or change.phase != "ok" or change.end_ns is None:
            continue
        conversation = change.value["conversation"]
        at = last_before(evidence.outbox, conversation, change.result["version"])
        for send in sends[conversation]:
            seq = send.result["seq"]
            if send.end_ns is not None and send.end_ns < change.start_ns and seq > at:
                bad.append(f"I11: {conversation} {seq} was answered before a {change.op} and is after it")
            if send.start_ns > change.end_ns and seq <= at:
                bad.append(f"I11: {conversation} {seq} began after a {change.op} and is before it")
    return bad


# -- the mailboxes and the devices


def entries_are_right(evidence: Evidence) -> list[str]:
    """What an entry says besides its place: payload, ids, flags, the sender's own marks."""
    bad = []
    for user, events in evidence.mailboxes.items():
        for event in events:
            message, key = event.message, key_of(event)
            own = message.sender_id == user
            flags = SENDER_FLAGS if own else RECIPIENT_FLAGS
            if message.body != body_of(key, evidence.body_bytes_max):
                bad.append(f"{user}: the body of {key} is not what was sent")
            if event.event_id != event_id_of(message.message_id, user):
                bad.append(f"I3: {user}: {key} has another event_id than its ids make")
            if event.flags != flags or event.client_message_id != (key if own else None):
                bad.append(f"F1: {user}: {key} has flags {event.flags}, mark {event.client_message_id}")
    return bad


def devices_saw_all(evidence: Evidence) -> list[str]:
    """I8, P8, P9: each device was shown everything above its first sync, once, in conversation order."""
    return [text for device in evidence.devices for text in _device(device, evidence)]


def _device(device: Device, evidence: Evidence) -> Iterator[str]:
    mailbox = evidence.mailboxes[device.user]
    started = next((one.sync_to_seq for one in device.deliveries if isinstance(one, SyncFinished)), None)
    if started is None:
        yield f"I8: {device.name} never finished a sync"
        return
    rebuilds = sum(isinstance(one, RebuildRequired) for one in device.deliveries)
    if rebuilds and not evidence.rebuilds_allowed:
        yield f"I9: {device.name} was told to rebuild, nothing was trimmed"
    events = [one for one in device.deliveries if isinstance(one, Event)]
    counts = Counter(event.event_id for event in events)
    held = {event.event_id: event for event in mailbox}
    due = {event.event_id for event in mailbox if event.mailbox_seq > started}
    for one, count in counts.items():
        if count > 1:
            yield f"P9: {device.name} was shown {one.hex()} {count} times"
        if one not in held:
            yield f"I2: {device.name} was shown {one.hex()}, which is not in the mailbox"
    for missing in due - counts.keys():
        yield f"I8: {device.name} was never shown {key_of(held[missing])}"
    if device.visible_duplicates or device.reordered:
        yield f"P9: {device.name}: {device.visible_duplicates} duplicates, {device.reordered} out of order"
    last: dict[str, int] = defaultdict(int)
    for event in events:
        message = event.message
        if message.conversation_seq <= last[message.conversation_id]:
            yield f"D11: {device.name} was shown {message.conversation_id} {message.conversation_seq} late"
        last[message.conversation_id] = message.conversation_seq


def probes_were_prefixes(evidence: Evidence) -> list[str]:
    """I6: whatever W covered at any moment was complete: it equals the final mailbox up to there."""
    bad = []
    for probe in evidence.probes:
        final = [
            (one.mailbox_seq, one.event_id)
            for one in evidence.mailboxes[probe.user]
            if probe.trim < one.mailbox_seq <= probe.sync_to_seq
        ]
        then = [(one.mailbox_seq, one.event_id) for one in probe.events]
        if then != final:
            bad.append(
                f"I6: {probe.user} read {len(then)} entries up to {probe.sync_to_seq}, "
                f"at the end there are {len(final)}"
            )
    return bad
