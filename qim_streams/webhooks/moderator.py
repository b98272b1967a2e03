"""Moderator: asks an application before a message of its tenant is committed, and what its answer means.

The question is a signed request like any webhook's:

    {"type": "message.before_send" | "message.before_edit", "tenant_id", "conversation_id", "to_user_id"?,
     "sender_id", "sender_device_id", "client_message_id", "body" | "body_base64"}

and the answer, within the deadline, JSON: {"action": "allow"}, {"action": "refuse", "reason": "..."} or
{"action": "change", "body": "..." | "body_base64": "..."}. No answer in time, another status than 200 or an
answer that is none: what the entry's `on_failure` says.

A message that is sent again with its client_message_id gets the ruling that it got before, as long as this
process remembers it; an application should rule the same way for the same client_message_id, since a
message that was committed is not taken back by a refusal of its repeat.

Spec: §3 (before the commit).
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qim_streams.commit.outcome import SendRequest
from qim_streams.errors import EndpointUnavailable
from qim_streams.lru import LruMap
from qim_streams.records import KIND_EDIT, KIND_MESSAGE
from qim_streams.webhooks import metrics
from qim_streams.webhooks.endpoints import BeforeSend
from qim_streams.webhooks.events import body_fields
from qim_streams.webhooks.ports import Poster
from qim_streams.webhooks.signature import headers

RULINGS_MAX = 20_000
REASON_CHARS_MAX = 200
_TYPES = {KIND_MESSAGE: "message.before_send", KIND_EDIT: "message.before_edit"}


class Ruling(NamedTuple):
    """`body` None: refused, for `reason`. `certain` is False when nobody ruled (`on_failure` did)."""

    body: bytes | None
    reason: str = ""
    certain: bool = True


def question(request: SendRequest) -> bytes:
    """The JSON of a question."""
    fields: dict[str, Any] = {
        "type": _TYPES[request.kind],
        "tenant_id": request.tenant_id,
        "conversation_id": request.conversation_id,
        "sender_id": request.sender_id,
        "sender_device_id": request.sender_device_id,
        "client_message_id": request.client_message_id,
    }
    if request.to_user_id is not None:
        fields["to_user_id"] = request.to_user_id
    if request.target_seq:
        fields["target_conversation_seq"] = request.target_seq
    return json.dumps(fields | body_fields(request.body), ensure_ascii=False).encode()


def ruling_of(answer: bytes, asked: bytes, body_bytes_max: int) -> Ruling | None:
    """What an answer says about the body `asked`; None when it is no answer."""
    try:
        fields = json.loads(answer)
        action = fields["action"]
        if action == "allow":
            return Ruling(asked)
        if action == "refuse":
            return Ruling(None, str(fields.get("reason", ""))[:REASON_CHARS_MAX])
        if action != "change":
            return None
        body: bytes = (
            fields["body"].encode("utf-8")
            if "body" in fields
            else base64.b64decode(fields["body_base64"], validate=True)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        return None
    return Ruling(body) if len(body) <= body_bytes_max else None


class Moderator:
    """Asks for the tenants that have an entry. Questions at once: as many as each entry allows."""

    def __init__(
        self,
        entries: Sequence[BeforeSend],
        poster: Poster,
        *,
        body_bytes_max: int,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._entries: Mapping[str, BeforeSend] = {entry.tenant: entry for entry in entries}
        self._asking = dict.fromkeys(self._entries, 0)
        self._poster, self._limit = poster, body_bytes_max
        self._now_ms, self._monotonic = now_ms, monotonic
        self._rulings: LruMap[tuple[str, ...], tuple[bytes, Ruling]] = LruMap(
            RULINGS_MAX, RULINGS_MAX * 4_096
        )

    def rules_on(self, request: SendRequest) -> bool:
        """Whether a request has to be asked for: recalls have not."""
        return request.tenant_id in self._entries and request.kind in _TYPES

    async def ask(self, request: SendRequest) -> Ruling:
        """The ruling; never an error of the endpoint."""
        entry = self._entries[request.tenant_id]
        key = (request.tenant_id, request.conversation_id, request.sender_id, request.client_message_id)
        known = self._rulings.get(key)
        if known is not None and known[0] == request.body:
            metrics.QUESTIONS.labels("known").inc()
            return known[1]
        ruling = await self._ruling(entry, request)
        if ruling is None:
            metrics.QUESTIONS.labels("failed").inc()
            return Ruling(request.body if entry.on_failure == "allow" else None, "", certain=False)
        metrics.QUESTIONS.labels("refused" if ruling.body is None else "allowed").inc()
        self._rulings.put(key, (request.body, ruling), len(request.body) + len(ruling.body or b"") + 1)
        return ruling

    async def _ruling(self, entry: BeforeSend, request: SendRequest) -> Ruling | None:
        if self._asking[entry.tenant] >= entry.parallel:
            return None
        body, began_s = question(request), self._monotonic()
        request_id = f"{request.sender_id}.{request.client_message_id}"
        signed = headers(entry.secret.get_secret_value().encode(), request_id, self._now_ms() // 1_000, body)
        self._asking[entry.tenant] += 1
        try:
            answer = await self._poster.post(entry.url, signed, body, entry.deadline_ms / 1_000)
        except EndpointUnavailable:
            return None
        finally:
            self._asking[entry.tenant] -= 1
            metrics.QUESTION_SECONDS.observe(self._monotonic() - began_s)
        return ruling_of(answer.body, request.body, self._limit) if answer.status == 200 else None
