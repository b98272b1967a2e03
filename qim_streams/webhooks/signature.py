"""The signature of a request, in the form of Standard Webhooks: HMAC-SHA256 over id, time and body. Pure.

Headers: ``webhook-id``, ``webhook-timestamp`` (seconds), ``webhook-signature: v1,<base64>``. A receiver
compares in constant time and refuses times that are minutes away, so a recorded request is of no use later.
"""

import base64
import hashlib
import hmac

ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300


def signature(secret: bytes, request_id: str, at_s: int, body: bytes) -> str:
    """``v1,`` and the base64 of the HMAC."""
    signed = f"{request_id}.{at_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode("ascii")


def headers(secret: bytes, request_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed JSON request."""
    return {
        "content-type": "application/json",
        "user-agent": "qim-webhooks/1",
        ID_HEADER: request_id,
        TIME_HEADER: str(at_s),
        SIGNATURE_HEADER: signature(secret, request_id, at_s, body),
    }


def is_genuine(secret: bytes, found: dict[str, str], body: bytes, now_s: int) -> bool:
    """Whether a request is signed with `secret` and of these minutes: what a receiver does."""
    try:
        at_s = int(found[TIME_HEADER])
        expected = signature(secret, found[ID_HEADER], at_s, body)
        given = found[SIGNATURE_HEADER]
    except (KeyError, ValueError):
        return False
    return abs(now_s - at_s) <= TOLERANCE_S and any(
        hmac.compare_digest(expected, one) for one in given.split(" ")
    )
