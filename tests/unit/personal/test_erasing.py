"""Erasing with writers that refuse, forget and wait: everything is tried, and what stays is named."""

from collections.abc import AsyncIterator
from typing import Any

from qim_streams.commit.admission import Admission, AdmissionLimits
from qim_streams.commit.outcome import UNKNOWN, SendOutcome, SendRequest, SendStatus, refused
from qim_streams.commit.requests import Windows, commit_request
from qim_streams.commit.revisions import FOR_EVER, Revisions
from qim_streams.errors import AdmissionRefused
from qim_streams.fanout.plan import read_outbox
from qim_streams.ids import is_text_id
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.membership.ports import Member
from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.operations.rules import OPERATORS_DEVICE, RECORDED_AS, revision_bytes
from qim_streams.personal.collecting import Collector, Whose
from qim_streams.personal.erasing import Eraser
from qim_streams.placement import outbox_partition
from qim_streams.quotas.buckets import TenantQuotas
from qim_streams.records import KIND_RECALL, STATE_RECALLED, OutboxRecord, message_head, record_key
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.rules import RowView
from qim_streams.sessions.state import UserConversationState

WHOSE = Whose(SessionUser("acme", "ann", 66), 1)
COMMITTED = SendOutcome(SendStatus.COMMITTED, b"m" * 16, 99, 5)


def view(conversation: str, kind: str = "group") -> RowView:
    """A conversation that she is in."""
    member = Member("ann", 66, "member", True, ((1, None),))
    return RowView(
        conversation,
        kind,
        "",
        None,
        False,
        9,
        9,
        "joined",
        member,
        UserConversationState("ann", conversation),
    )


class Told(Collector):
    """A collector of what a test says."""

    def __init__(self, messages: dict[str, list[dict[str, Any]]]) -> None:
        self.told = messages

    async def conversations(self, whose: Whose) -> AsyncIterator[RowView]:
        """All of them; the last one is a direct chat."""
        names = list(self.told)
        for name in names:
            yield view(name, "direct" if name == names[-1] else "group")

    async def messages(
        self, whose: Whose, conversation_id: str, *, received: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Her messages."""
        for message in self.told[conversation_id]:
            yield message


class Writers:
    """Answers sends as told; `leaving` refuses."""

    def __init__(self, answers: dict[int, list[SendOutcome]], leaving: str = "") -> None:
        self.answers, self.leaving = answers, leaving
        self.sent: list[SendRequest] = []
        self.commands: list[GroupCommand] = []

    async def send(self, request: SendRequest, timeout_s: float) -> SendOutcome:
        """The next answer for this number."""
        self.sent.append(request)
        waiting = self.answers.get(request.target_seq, [])
        return waiting.pop(0) if waiting else COMMITTED

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """Done or refused."""
        self.commands.append(command)
        if self.leaving:
            raise AdmissionRefused(self.leaving, "no")
        return None  # type: ignore[return-value]  # nobody looks at it


class Things:
    """Devices and push registrations."""

    def __init__(self) -> None:
        self.forgotten, self.unregistered = 0, list[str]()

    async def of_user(self, tenant_id: str, user_id: str) -> dict[str, str]:
        """One."""
        return {"phone": "1 2 ios"}

    async def forget(self, tenant_id: str, user_id: str) -> int:
        """Count."""
        self.forgotten += 1
        return 1

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """Two."""
        return [PushDevice("acme", "ann", 66, name, "apns", "app", "token", 1) for name in ("a", "b")]

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings:
        """The defaults."""
        return PushSettings(tenant_id, user_id)

    async def unregister(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """Remember."""
        self.unregistered.append(device_id)

    async def change_settings(self, settings: PushSettings) -> PushSettings:
        """Never: they are the defaults."""
        raise AssertionError


def message(seq: int, kind: int = 0, state: int = 0) -> dict[str, Any]:
    """A message of hers."""
    return {"conversation_seq": seq, "kind": kind, "state": state}


async def no_time(_: float) -> None:
    """Nobody waits here."""


async def test_everything_is_tried_and_what_stays_is_named() -> None:
    """Busy and unknown answers are repeated, refusals for good are counted, recalled ones are passed over."""
    told = Told(
        {
            "team": [
                message(1),
                message(2),
                message(3, state=STATE_RECALLED),
                message(4, kind=1),
                message(5),
            ],
            "left": [message(6), message(7)],
            "chat": [message(8)],
        }
    )
    writers = Writers(
        {
            2: [refused("CONVERSATION_BUSY", "later", 10), UNKNOWN],
            6: [refused("NOT_MEMBER", "no")],
            7: [refused("NOT_MEMBER", "no")],
        },
        leaving="OWNER_STAYS",
    )
    things = Things()
    done = await Eraser(told, writers, things, things, no_time).run(WHOSE)
    assert done.messages == 4
    assert [one.target_seq for one in writers.sent] == [1, 2, 2, 2, 5, 6, 7, 8]
    assert {one.client_message_id for one in writers.sent if one.target_seq == 2} == {"erase.2"}
    assert {(one.kind, one.sender_id, one.sender_device_id) for one in writers.sent} == {
        (KIND_RECALL, "ann", OPERATORS_DEVICE)
    }
    assert [one.conversation_id for one in writers.commands] == ["team", "left"]
    assert done.kept == [
        "team: membership (OWNER_STAYS)",
        "left: 2 messages (NOT_MEMBER)",
        "left: membership (OWNER_STAYS)",
    ]
    assert (things.forgotten, things.unregistered, done.push_devices) == (1, ["a", "b"], 2)


def test_only_the_operators_recalls_know_no_window() -> None:
    """And no client can say that it is the operator's device."""
    windows = Windows(900_000, 120_000, 60_000)
    send = SendRequest("acme", "team", "ann", 66, "phone", "m", b"", kind=KIND_RECALL, target_seq=1)
    assert Revisions().change(send, windows, b"").window_ms == 120_000
    operators = send._replace(sender_device_id=OPERATORS_DEVICE)
    assert Revisions().change(operators, windows, b"").window_ms == FOR_EVER
    assert not is_text_id(OPERATORS_DEVICE)
    admission = Admission(AdmissionLimits(100, 500, 3_000, 0, 1), TenantQuotas(0, 1))
    assert admission.check(operators) is None
    message = operators._replace(kind=0, target_seq=0, body=b"x")
    assert admission.check(message) is not None


def test_every_stage_takes_its_record_for_one() -> None:
    """A device that is no id would make the record poison behind the writer."""
    operators = SendRequest(
        "acme", "team", "ann", 66, OPERATORS_DEVICE, "erase.1", b"", kind=KIND_RECALL, target_seq=1
    )
    request = commit_request(operators, b"m" * 16, 5, 99, False)
    message = message_head(2, 1) + request.record_tail + revision_bytes(1)
    value = OutboxRecord(message, 5, 0, None).encode()

    class Record:
        """As the log gives it."""

        key, offset = record_key("acme", "team"), 0

    Record.value = value  # type: ignore[attr-defined]
    partition = outbox_partition("acme", "team", 4)
    read = read_outbox(Record(), partition, 4, 8).message  # type: ignore[arg-type]
    assert (read.sender_device_id, read.kind) == (RECORDED_AS, KIND_RECALL)
