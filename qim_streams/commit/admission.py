"""Admission of messages in the writer: form, size, and how often one sender may speak in a large group.

Invariants: bounded memory (`senders_max` recent senders, `conversations_max` sizes, as many well-formed
ids); the rate never refuses a repeat, because the store is asked with `refuse_new` and answers repeats as
always; a sender forgotten under pressure may speak once too early, never too late.

Spec: §3.1, §3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qim_streams.commit.outcome import SendOutcome, SendRequest, refused
from qim_streams.commit.ports import SEQ_MAX
from qim_streams.ids import direct_conversation_id, is_text_id
from qim_streams.lru import LruMap
from qim_streams.operations.rules import OPERATIONS
from qim_streams.records import KIND_MESSAGE, KIND_RECALL

SENDERS_MAX = 200_000
CONVERSATIONS_MAX = 200_000
_SenderKey = tuple[str, str, str]  # tenant, conversation, sender
_FORMED_MAX = 65_536  # ids that come together again and again, found well-formed


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What a deployment sets. `sender_interval_ms` 0 switches the rate off."""

    body_bytes_max: int
    large_group_members: int
    sender_interval_ms: int


class Admission:
    """Rules of one writer process."""

    def __init__(
        self,
        limits: AdmissionLimits,
        senders_max: int = SENDERS_MAX,
        conversations_max: int = CONVERSATIONS_MAX,
    ) -> None:
        self._limits = limits
        self._last_ms: LruMap[_SenderKey, int] = LruMap(senders_max, senders_max)
        self._large: LruMap[tuple[str, str], bool] = LruMap(conversations_max, conversations_max)
        self._formed: LruMap[tuple[str | None, ...], bool] = LruMap(_FORMED_MAX, _FORMED_MAX)

    def check(self, request: SendRequest) -> SendOutcome | None:
        """The refusal of a request that is wrong in itself, None when it may go on."""
        if len(request.body) > self._limits.body_bytes_max:
            return refused(
                "BODY_TOO_LARGE",
                f"the body has {len(request.body)} bytes, over {self._limits.body_bytes_max}",
            )
        (
            tenant_id, conversation_id, sender_id, _, device_id, client_message_id, _, to_user_id, kind,
            target_seq,
        ) = request  # fmt: skip
        named = tenant_id, conversation_id, sender_id, device_id, to_user_id
        if named not in self._formed:
            if to_user_id is not None and not is_text_id(to_user_id):
                return refused("FIELD_INVALID", "to_user_id is not an id")
            if not all(map(is_text_id, named[:4])):
                return refused("FIELD_INVALID", "tenant, conversation, sender or device is not an id")
            self._formed.put(named, True)
        if not is_text_id(client_message_id):
            return refused("FIELD_INVALID", "client_message_id is not an id")
        if kind != KIND_MESSAGE or target_seq:
            return _check_change(request)
        return None

    def waits_ms(self, requests: Sequence[SendRequest], now_ms: int) -> list[int]:
        """How long each sender has to wait before a new message there; 0: now.

        Of several messages of one sender in one call only the first may be new. Nothing is counted yet.
        """
        interval_ms = self._limits.sender_interval_ms
        if not interval_ms:
            return [0] * len(requests)
        seen: set[_SenderKey] = set()
        return [self._wait_ms(request, now_ms, interval_ms, seen) for request in requests]

    def _wait_ms(self, request: SendRequest, now_ms: int, interval_ms: int, seen: set[_SenderKey]) -> int:
        if not self._large.get((request.tenant_id, request.conversation_id)):
            return 0
        sender = (request.tenant_id, request.conversation_id, request.sender_id)
        last_ms = now_ms if sender in seen else self._last_ms.get(sender)
        if last_ms is None or not 0 <= now_ms - last_ms < interval_ms:  # a clock set back must not lock out
            seen.add(sender)
            return 0
        return interval_ms - (now_ms - last_ms)

    def learn(self, request: SendRequest, members_active: int, now_ms: int) -> None:
        """A message was committed as new in a conversation of this size."""
        if not self._limits.sender_interval_ms:
            return
        conversation = (request.tenant_id, request.conversation_id)
        large = members_active >= self._limits.large_group_members
        if large != bool(self._large.get(conversation)):
            self._large.put(conversation, large)
        if large:
            self._last_ms.put((*conversation, request.sender_id), now_ms)


def _check_change(request: SendRequest) -> SendOutcome | None:
    """The refusal of a request that is no message, unless it is a well-formed edit or recall."""
    if request.kind not in OPERATIONS:
        return refused("FIELD_INVALID", f"kind {request.kind} is neither a message nor an edit or recall")
    if not 1 <= request.target_seq <= SEQ_MAX:
        return refused("FIELD_INVALID", "conversation_seq names no message")
    if request.to_user_id is not None:
        return refused("FIELD_INVALID", "to_user_id has no place in an edit or recall")
    if request.kind == KIND_RECALL and request.body:
        return refused("FIELD_INVALID", "a recall has no body")
    return None


def check_chat(request: SendRequest) -> SendOutcome | None:
    """The refusal of a request whose direct chat is to be made and that names another conversation.

    Asked only then: in a chat that exists, membership decides.
    """
    expected = direct_conversation_id(request.tenant_id, request.sender_id, request.to_user_id or "")
    if request.conversation_id != expected:
        return refused("FIELD_INVALID", "conversation_id is not that of a chat with to_user_id")
    return None
