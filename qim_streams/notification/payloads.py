"""Notifications as the providers want them, cut to what they take. Pure.

What an application needs to fetch and show the message is beside the text in each: conversation, number, id,
sender, mention, tenant and user. Ids alone are far below the limits, so only the preview is ever cut.

Spec: §6. Scenario H13.
"""

import json
from typing import Any, Final

from qim_streams.notification.ports import Notification

PAYLOAD_BYTES_MAX: Final = 4_096  # of APNs and FCM alike
FCM_DATA_RESERVE: Final = 256  # FCM counts what it adds, too
_CUT: Final = "…"


def details(one: Notification) -> dict[str, str]:
    """What every payload carries; all values are text, as FCM wants them."""
    return {
        "notification_id": one.notification_id.hex(),
        "tenant_id": one.tenant_id,
        "user_id": one.user_id,
        "conversation_id": one.conversation_id,
        "conversation_seq": str(one.conversation_seq),
        "message_id": one.message_id.hex(),
        "sender_id": one.sender_id,
        "committed_at": str(one.committed_at),
        "mention_type": str(one.mention_type),
    }


def apns_payload(one: Notification) -> bytes:
    """The body of a request to APNs; an extension of the application may fill the text in."""

    def made(text: str) -> bytes:
        alert = {"title": one.title, "body": text}
        aps: dict[str, Any] = {"alert": alert, "sound": "default", "mutable-content": 1}
        aps["thread-id"] = one.conversation_id
        if one.badge is not None:
            aps["badge"] = one.badge
        return _json({"aps": aps, "qim": details(one)})

    return _fitting(made, one.text, PAYLOAD_BYTES_MAX)


def fcm_payload(one: Notification, now_s: int, *, collapse: bool) -> bytes:
    """The body of a request to FCM. `collapse`: also where the device was not reachable for long.

    FCM keeps messages of at most four collapse keys per device, so a key per message goes into the tag, which
    replaces what is shown, and not into collapse_key.
    """

    def made(text: str) -> bytes:
        shown: dict[str, Any] = {"tag": one.collapse_key}
        if one.badge is not None:
            shown["notification_count"] = one.badge
        android: dict[str, Any] = {
            "priority": "HIGH",
            "ttl": f"{max(0, one.expires_at - now_s)}s",
            "notification": shown,
        }
        if collapse:
            android["collapse_key"] = one.collapse_key
        data = details(one)
        if one.badge is not None:
            data["badge"] = str(one.badge)
        notification = {"title": one.title, "body": text}
        message = {"token": one.token, "notification": notification, "data": data, "android": android}
        return _json({"message": message})

    return _fitting(made, one.text, PAYLOAD_BYTES_MAX - FCM_DATA_RESERVE + len(one.token))


def webhook_payload(one: Notification) -> bytes:
    """The body of a request to a webhook: everything, the token included."""
    return _json(
        {
            **details(one),
            "conversation_seq": one.conversation_seq,
            "committed_at": one.committed_at,
            "mention_type": one.mention_type,
            "device_id": one.device_id,
            "app": one.app,
            "token": one.token,
            "badge": one.badge,
            "title": one.title,
            "text": one.text,
            "collapse_key": one.collapse_key,
            "expires_at": one.expires_at,
        }
    )


def _fitting(made: Any, text: str, bytes_max: int) -> bytes:
    """The longest text that fits; one character less at a time would be slow, so it is halved."""
    body: bytes = made(text)
    while len(body) > bytes_max and text:
        text = text[: len(text) // 2]
        body = made(text + _CUT if text else "")
    return body


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
