"""Admission of messages in the writer: form, size, and three rates.

* L1: how often one sender may speak in a large group (RATE_LIMITED);
* L2: messages per second of a conversation (CONVERSATION_BUSY);
* L3: recipients per second of a tenant, over all its conversations (QUOTA_EXCEEDED).

Invariants: bounded memory (`senders_max` recent senders, `conversations_max` sizes, as many well-formed
ids; see `quotas` for its own); a rate never refuses a repeat, because the store is asked with `refuse_new`
and answers repeats as always; what is counted before the store has answered is given back if it was no new
message; a sender forgotten under pressure may speak once too early, never too late.

Spec: §3.1, §3.2, §13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qim_streams.commit.outcome import SendOutcome, SendRequest, refused
from qim_streams.commit.ports import SEQ_MAX
from qim_streams.errors import RecordError
from qim_streams.ids import direct_conversation_id, is_text_id
from qim_streams.lru import LruMap
from qim_streams.mentions import decode_mentions
from qim_streams.operations.rules import OPERATIONS, OPERATORS_DEVICE
from qim_streams.quotas.buckets import Bucket, TenantQuotas
from qim_streams.quotas.rates import ConversationRates
from qim_streams.records import KIND_MESSAGE, KIND_RECALL

SENDERS_MAX = 200_000
CONVERSATIONS_MAX = 200_000
DIRECT_MEMBERS = 2  # what a conversation is taken to have until one of its messages was committed here
_SenderKey = tuple[str, str, str]  # tenant, conversation, sender
_FORMED_MAX = 65_536  # ids that come together again and again, found well-formed


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What a deployment sets. `sender_interval_ms` or `conversation_per_s` 0 switches that rate off."""

    body_bytes_max: int
    large_group_members: int
    sender_interval_ms: int
    conversation_per_s: float = 0
    conversation_burst_ms: int = 2_000


class Wait(NamedTuple):
    """A new message may not be said before `ms` have passed; `code` and `detail` say whose rate it is."""

    ms: int
    code: str
    detail: str


Ticket = int | Wait
"""Of a message that may be new: the recipients it was charged with, or why it must wait."""

_SENDER: Final = "RATE_LIMITED", "one message per interval in a large group"
_CONVERSATION: Final = "CONVERSATION_BUSY", "the conversation has had its messages for now"
_TENANT: Final = "QUOTA_EXCEEDED", "the tenant has used up its fan-out quota"


class Admission:
    """Rules of one writer process."""

    def __init__(
        self,
        limits: AdmissionLimits,
        quotas: TenantQuotas | None = None,
        senders_max: int = SENDERS_MAX,
        conversations_max: int = CONVERSATIONS_MAX,
    ) -> None:
        """`quotas`: of all tenants that this process serves; None: no tenant has one."""
        self._limits, self._quotas = limits, quotas
        self._rates = (
            ConversationRates(limits.conversation_per_s, limits.conversation_burst_ms)
            if limits.conversation_per_s
            else None
        )
        self._last_ms: LruMap[_SenderKey, int] = LruMap(senders_max, senders_max)
        # Of groups only: what is not in here has two members, or was never heard of.
        self._sizes: LruMap[tuple[str, str], int] = LruMap(conversations_max, conversations_max)
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
            target_seq, mentions,
        ) = request  # fmt: skip
        if device_id == OPERATORS_DEVICE and kind == KIND_RECALL:
            device_id = sender_id  # an erasure: no client's device
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
        if mentions and not _is_well_formed(mentions):
            return refused("FIELD_INVALID", "mentions names what is not a user, or too many")
        return None

    def tickets(self, requests: Sequence[SendRequest], now_ms: int) -> list[Ticket]:
        """Which messages may be new. Those are counted; `learn` or `give_back` must follow for each.

        Of several messages of one sender to a large group in one call only the first may be new.
        """
        rates, quotas, large = self._rates, self._quotas, self._limits.large_group_members
        interval_ms, seen = self._limits.sender_interval_ms, set[_SenderKey]()
        bucket: Bucket | None = None
        tenant: str | None = None
        tickets: list[Ticket] = []
        for request in requests:
            tenant_id = request.tenant_id
            conversation = tenant_id, request.conversation_id
            size = self._sizes.get(conversation) or DIRECT_MEMBERS
            if interval_ms and size >= large:
                wait_ms = self._sender_wait_ms((*conversation, request.sender_id), now_ms, seen)
                if wait_ms:
                    tickets.append(Wait(wait_ms, *_SENDER))
                    continue
            if rates is not None and (wait_ms := rates.take(conversation, now_ms)):
                tickets.append(Wait(wait_ms, *_CONVERSATION))
                continue
            if quotas is not None:
                if bucket is None or tenant_id != tenant:
                    bucket, tenant = quotas.bucket(tenant_id, now_ms), tenant_id
                if wait_ms := bucket.take(size, now_ms):
                    if rates is not None:
                        rates.give_back(conversation)
                    tickets.append(Wait(wait_ms, *_TENANT))
                    continue
            tickets.append(size)
        return tickets

    def _sender_wait_ms(self, sender: _SenderKey, now_ms: int, seen: set[_SenderKey]) -> int:
        interval_ms = self._limits.sender_interval_ms
        last_ms = now_ms if sender in seen else self._last_ms.get(sender)
        if last_ms is None or not 0 <= now_ms - last_ms < interval_ms:  # a clock set back must not lock out
            seen.add(sender)
            return 0
        return interval_ms - (now_ms - last_ms)

    def learn(self, request: SendRequest, ticket: Ticket, members_active: int, now_ms: int) -> None:
        """A message was committed as new in a conversation of this size."""
        if ticket != members_active and isinstance(ticket, int):
            self._sizes.put((request.tenant_id, request.conversation_id), members_active)
            if self._quotas is not None:
                self._quotas.bucket(request.tenant_id, now_ms).charge(members_active - ticket)
        if members_active >= self._limits.large_group_members and self._limits.sender_interval_ms:
            self._last_ms.put((request.tenant_id, request.conversation_id, request.sender_id), now_ms)

    def give_back(self, request: SendRequest, ticket: Ticket, now_ms: int) -> None:
        """A message that was counted was a repeat, or is refused for another reason, or is asked again."""
        if not isinstance(ticket, int):
            return
        if self._rates is not None:
            self._rates.give_back((request.tenant_id, request.conversation_id))
        if self._quotas is not None:
            self._quotas.bucket(request.tenant_id, now_ms).charge(-ticket)


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


def _is_well_formed(field: bytes) -> bool:
    try:
        decode_mentions(field)
    except RecordError:
        return False
    return True
