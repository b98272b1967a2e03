"""From tasks off the queue to notifications, or to why there is none: everything is looked up in bulk, now.

At the moment of sending, and again in each attempt: so a device that logged out a moment ago gets nothing,
and whoever has read meanwhile is left alone.

Spec: §6. Scenarios H5 H10 H13.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from blake3 import blake3

from qim_streams.errors import RecordError, StoreError
from qim_streams.mentions import MENTION_NONE, mentions_of
from qim_streams.notification.ports import (
    DeviceRow,
    MessageReader,
    Notification,
    QueuedTask,
    StateReader,
)
from qim_streams.notification.records import PushDevice, PushTask, decode_task
from qim_streams.notification.restoring import WholeDevices
from qim_streams.notification.rules import Known, why_not
from qim_streams.records import MessageRecord, decode_message
from qim_streams.sessions.badge_ports import BadgeQuery, BadgeReader
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.restoring import state_of

log = logging.getLogger(__name__)

MALFORMED: Final = "malformed"
BADGES_S: Final = 2.0  # a notification waits no longer for its badge


@dataclass(frozen=True, slots=True)
class Style:
    """What notifications look like. `preview_chars` 0: no text of a message leaves the system."""

    title: str
    text: str
    preview_chars: int
    per_conversation: bool  # a conversation's notifications replace each other
    age_max_ms: int
    ttl_s: int


class Prepared(NamedTuple):
    """A task with its notification, or with why there is none (then the others are None)."""

    queued: QueuedTask
    why: str | None
    task: PushTask | None = None
    device: PushDevice | None = None
    notification: Notification | None = None


class Preparer:
    """See the module text. `now_ms` is the wall clock."""

    def __init__(
        self,
        devices: WholeDevices,
        states: StateReader,
        messages: MessageReader,
        badges: BadgeReader,
        style: Style,
        now_ms: Callable[[], int],
    ) -> None:
        self._devices, self._states, self._messages = devices, states, messages
        self._badges, self._style, self._now_ms = badges, style, now_ms

    async def prepare(self, queued: Sequence[QueuedTask]) -> list[Prepared]:
        """What to do with each task, in order. StoreError: none of it is known."""
        decoded = [_decoded(one) for one in queued]
        tasks = [task for task in decoded if task is not None]
        rows, states, records = await asyncio.gather(
            self._devices.load([(one.tenant_id, one.user_id, one.device_id) for one in tasks]),
            self._states.states([(_user(one), one.conversation_id) for one in tasks]),
            self._messages.records(
                [(one.tenant_id, one.conversation_id, one.conversation_seq) for one in tasks]
            ),
        )
        messages = [_message(task, data) for task, data in zip(tasks, records, strict=True)]
        now = self._now_ms()
        reasons = [
            why_not(task, _known(task, row, state, message), now, self._style.age_max_ms)
            for task, row, state, message in zip(tasks, rows, states, messages, strict=True)
        ]
        badges = await self._totals([task for task, why in zip(tasks, reasons, strict=True) if why is None])
        found = iter(zip(tasks, rows, messages, reasons, strict=True))
        prepared = []
        for one, task in zip(queued, decoded, strict=True):
            if task is None:
                prepared.append(Prepared(one, MALFORMED))
                continue
            _, row, message, why = next(found)
            if why is not None or row.device is None or message is None:
                prepared.append(Prepared(one, why or "no_device", task))
                continue
            badge = badges.get((task.tenant_id, task.user_id))
            made = self._notification(one, task, row.device, message, badge)
            prepared.append(Prepared(one, None, task, row.device, made))
        return prepared

    async def _totals(self, tasks: Sequence[PushTask]) -> dict[tuple[str, str], int]:
        """The badge of each user, asked once however many devices and messages."""
        users: dict[tuple[str, str], list[PushTask]] = {}
        for one in tasks:
            users.setdefault((one.tenant_id, one.user_id), []).append(one)
        if not users:
            return {}
        wanted = [
            BadgeQuery(
                _user(mine[0]),
                mine[0].mailbox_shard,
                tuple(dict.fromkeys(one.conversation_id for one in mine)),
            )
            for mine in users.values()
        ]
        try:
            async with asyncio.timeout(BADGES_S):
                badges = await self._badges.badges(wanted)
        except (StoreError, TimeoutError) as error:
            log.info("%d badges are left out: %s", len(wanted), str(error) or "no answer in time")
            return {}
        return {user: badge.unread for user, badge in zip(users, badges, strict=True)}

    def _notification(
        self,
        queued: QueuedTask,
        task: PushTask,
        device: PushDevice,
        message: MessageRecord,
        badge: int | None,
    ) -> Notification:
        style = self._style
        collapse = queued.task_id.hex()
        if style.per_conversation:
            collapse = blake3(f"{task.tenant_id}\0{task.conversation_id}".encode()).hexdigest(16)
        return Notification(
            notification_id=queued.task_id,
            tenant_id=task.tenant_id,
            user_id=task.user_id,
            device_id=task.device_id,
            app=device.app,
            token=device.token,
            conversation_id=task.conversation_id,
            conversation_seq=task.conversation_seq,
            message_id=task.message_id,
            sender_id=task.sender_id,
            committed_at=task.committed_at,
            mention_type=mentions_of(message).type_for(task.user_id),
            badge=badge,
            title=style.title,
            text=_preview(message.body, style.preview_chars) or style.text,
            collapse_key=collapse,
            expires_at=task.committed_at // 1_000 + style.ttl_s,
        )


def _decoded(queued: QueuedTask) -> PushTask | None:
    try:
        return decode_task(queued.task)
    except RecordError:
        return None


def _message(task: PushTask, data: bytes | None) -> MessageRecord | None:
    """The task's message; one with another id, and one that cannot be read, is none."""
    if data is None:
        return None
    try:
        message = decode_message(data)
    except RecordError:
        return None
    return message if message.message_id == task.message_id else None


def _known(task: PushTask, row: DeviceRow, data: bytes | None, message: MessageRecord | None) -> Known:
    state = state_of(_user(task), task.conversation_id, data)
    mention = MENTION_NONE if message is None else mentions_of(message).type_for(task.user_id)
    return Known(
        row.device,
        row.settings,
        row.session_epoch,
        row.ended,
        state.read_seq,
        state.deleted_to_seq,
        state.deleted,
        state.muted,
        mention,
        None if message is None else message.state,
    )


def _user(task: PushTask) -> SessionUser:
    return SessionUser(task.tenant_id, task.user_id, task.ordinal)


def _preview(body: bytes, chars: int) -> str:
    """The beginning of a body that is text; empty for any other."""
    if not chars:
        return ""
    try:
        text = body[: 4 * chars + 4].decode("utf-8", "ignore" if len(body) > 4 * chars else "strict")
    except UnicodeDecodeError:
        return ""
    if any(ord(one) < 32 and one not in "\n\t" for one in text):
        return ""
    return text if len(text) <= chars else text[: chars - 1] + "…"
