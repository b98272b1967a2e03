"""Each check of the system-level tests is shown a good run and then one with exactly its violation.

A checker that cannot fail proves nothing. The good run: ann and ben in a group that cid joins after the
second message, and a direct chat of ann and ben; one ack was lost and the send repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qim_streams.client import SyncFinished
from qim_streams.ids import direct_conversation_id, event_id
from qim_streams.records import RECIPIENT_FLAGS, SENDER_FLAGS, MessageRecord
from qim_streams.testing.history import Operation
from qim_streams.wire.frames import Event, Message
from tests.support.device import Device, body_of
from tests.support.evidence import Evidence, problems
from tests.support.logs import Logged
from tests.support.traffic import Probe

TENANT, SIZE = "t", 40
CHAT = direct_conversation_id(TENANT, "ann", "ben")


@dataclass
class Run:
    """The good run, in parts that a test may spoil before `evidence` puts them together."""

    operations: list[Operation] = field(default_factory=list)
    outbox: list[Logged] = field(default_factory=list)
    mailboxes: dict[str, list[Event]] = field(default_factory=lambda: {"ann": [], "ben": [], "cid": []})
    shown: list[Any] = field(default_factory=list)  # by ben's device
    probes: list[Probe] = field(default_factory=list)
    visible_duplicates: int = 0
    now: int = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def change(self, op: str, value: dict[str, Any], version: int) -> None:
        start = self.tick()
        done = {"version": version}
        self.operations.append(
            Operation("ann.steady", op, {"conversation": "g", **value}, "ok", done, None, start, self.tick())
        )

    def say(self, user: str, key: str, seq: int, version: int, members: str, to: str | None = None) -> None:
        start, conversation = self.tick(), CHAT if to else "g"
        message_id = (len(self.outbox) + 1).to_bytes(16, "big")
        record = MessageRecord(
            seq, version, TENANT, conversation, message_id, message_id, user, 1, "phone", key, 1, 5, 0, 0, b""
        )
        self.outbox.append(Logged(0, len(self.outbox), False, record.encode(), record))
        seen = Message(message_id, conversation, seq, user, 0, 0, 5, body_of(key, SIZE))
        for member in members.split():
            own = member == user
            flags, mark = (SENDER_FLAGS, key) if own else (RECIPIENT_FLAGS, None)
            at = len(self.mailboxes[member])
            self.mailboxes[member].append(Event(at, 0, event_id(message_id, member), flags, 0, seen, mark))
        value = {"key": key, "user": user, "conversation": None if to else "g", "to": to}
        result = {"conversation": conversation, "seq": seq, "message_id": message_id.hex(), "at": 5}
        self.operations.append(
            Operation(f"{user}.steady", "send", value, "ok", result, None, start, self.tick())
        )

    def repeat(self, key: str) -> None:
        first = next(one for one in self.operations if one.value.get("key") == key)
        again = replace(first, op="repeat", result=dict(first.result), start_ns=self.tick())
        self.operations.append(replace(again, end_ns=self.tick()))

    def op(self, key: str) -> Operation:
        return next(one for one in self.operations if one.value.get("key") == key)

    def evidence(self) -> Evidence:
        counts = {"visible_duplicates": self.visible_duplicates, "reordered": 0}
        device = SimpleNamespace(user="ben", name="ben.steady", deliveries=self.shown, **counts)
        return Evidence(
            TENANT, SIZE, self.operations, self.outbox, self.mailboxes, [cast(Device, device)], self.probes
        )


@pytest.fixture
def run() -> Run:
    run = Run()
    run.change("create", {"members": ["ann", "ben"]}, 1)
    run.say("ann", "a1", 1, 1, "ann ben")
    run.say("ben", "b1", 2, 1, "ann ben")
    run.change("join", {"user": "cid"}, 2)
    run.say("ann", "a2", 3, 2, "ann ben cid")
    run.say("ann", "a3", 1, 1, "ann ben", to="ben")
    run.repeat("a2")
    run.shown = [SyncFinished(-1), *run.mailboxes["ben"]]
    run.probes = [Probe("ben", -1, 1, tuple(run.mailboxes["ben"][:2]))]
    return run


def test_the_good_run_is_good(run: Run) -> None:
    assert problems(run.evidence()) == []


def _ack_without_a_record(run: Run) -> None:
    run.outbox = [one for one in run.outbox if one.message.client_message_id != "a3"]


def _lost_entry(run: Run) -> None:
    del run.mailboxes["cid"][0]


def _entry_twice(run: Run) -> None:
    last = run.mailboxes["cid"][-1]
    run.mailboxes["cid"].append(last._replace(mailbox_seq=9))


def _refused_and_there(run: Run) -> None:
    run.op("a3").phase, run.op("a3").result = "fail", None


def _unknown_for_one_only(run: Run) -> None:
    run.op("a3").phase, run.op("a3").result = "info", None
    run.mailboxes["ben"] = run.mailboxes["ben"][:-1]
    run.shown = run.shown[:-1]


def _hole_in_the_log(run: Run) -> None:
    run.outbox[0] = run.outbox[0]._replace(message=run.outbox[0].message._replace(conversation_seq=7))


def _two_contents(run: Run) -> None:
    run.outbox.append(run.outbox[0]._replace(offset=9, raw=b"other"))


def _version_goes_back(run: Run) -> None:
    run.outbox[1] = run.outbox[1]._replace(message=run.outbox[1].message._replace(membership_version=0))


def _another_answer(run: Run) -> None:
    run.operations[-1].result["at"] = 6


def _later_send_before(run: Run) -> None:
    run.op("b1").start_ns, run.op("a1").start_ns = 1, 900
    run.op("a1").end_ns = 901


def _own_order(run: Run) -> None:
    first, second = run.op("a1"), run.op("a2")
    first.start_ns, first.end_ns, second.start_ns, second.end_ns = 50, 60, 40, 55


def _change_too_late(run: Run) -> None:
    run.op("a2").start_ns, run.op("a2").end_ns = 0, 1


def _change_too_early(run: Run) -> None:
    run.op("b1").start_ns, run.op("b1").end_ns = 90, 91


def _wrong_body(run: Run) -> None:
    event = run.mailboxes["cid"][0]
    run.mailboxes["cid"][0] = event._replace(message=event.message._replace(body=b"a2|"))


def _wrong_flags(run: Run) -> None:
    run.mailboxes["ann"][0] = run.mailboxes["ann"][0]._replace(flags=RECIPIENT_FLAGS)


def _wrong_event_id(run: Run) -> None:
    run.mailboxes["ann"][0] = run.mailboxes["ann"][0]._replace(event_id=b"x" * 16)


def _device_missed_one(run: Run) -> None:
    del run.shown[-1]


def _device_saw_one_twice(run: Run) -> None:
    run.shown.append(run.shown[-1])


def _device_out_of_order(run: Run) -> None:
    run.shown[1], run.shown[2] = run.shown[2], run.shown[1]


def _device_never_synced(run: Run) -> None:
    del run.shown[0]


def _probe_with_a_hole(run: Run) -> None:
    run.probes = [run.probes[0].__class__("ben", -1, 1, run.probes[0].events[1:])]


def _left_and_still_reading(run: Run) -> None:
    run.change("leave", {"user": "cid"}, 2)
    run.operations[-1].start_ns = run.operations[-1].end_ns = 0


SPOILED: list[tuple[str, Callable[[Run], None]]] = [
    ("I1: a3 was acknowledged", _ack_without_a_record),
    ("I1: cid lacks", _lost_entry),
    ("I3: ", _entry_twice),
    ("I2: ", _refused_and_there),
    ("I1: ben lacks", _unknown_for_one_only),
    ("I4: ", _hole_in_the_log),
    ("two contents", _two_contents),
    ("membership version", _version_goes_back),
    ("P2: a2", _another_answer),
    ("answered before", _later_send_before),
    ("sent to g in order", _own_order),
    ("is after it", _change_too_late),
    ("is before it", _change_too_early),
    ("is not what was sent", _wrong_body),
    ("F1: ann", _wrong_flags),
    ("another event_id", _wrong_event_id),
    ("I8: ben.steady was never shown", _device_missed_one),
    ("P9: ben.steady was shown", _device_saw_one_twice),
    ("D11: ben.steady", _device_out_of_order),
    ("never finished a sync", _device_never_synced),
    ("I6: ben read", _probe_with_a_hole),
    ("I11: cid has", _left_and_still_reading),
]


@pytest.mark.parametrize(("says", "spoil"), SPOILED, ids=[spoil.__name__.strip("_") for _, spoil in SPOILED])
def test_a_violation_is_found(run: Run, says: str, spoil: Callable[[Run], None]) -> None:
    spoil(run)
    found = problems(run.evidence())
    assert any(says in text for text in found), found
