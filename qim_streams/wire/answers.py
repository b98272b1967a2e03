"""ERROR frames: from a name of the table, or from an exception that a request ended with.

Invariants: every exception has an answer; the detail of a foreign exception is never sent.
"""

from typing import Any

from qim_streams.errors import (
    AdmissionRefused,
    Outcome,
    ProtocolError,
    QimError,
    StoreError,
    StoreUnavailable,
    SyncVerdict,
)
from qim_streams.wire.codes import code_of
from qim_streams.wire.frames import Error

DETAIL_MAX = 512
FIELD_MAX = 128


def error(
    name: str,
    detail: str,
    rid: int | None = None,
    *,
    field: str | None = None,
    retry_after_ms: int | None = None,
    **fields: Any,
) -> Error:
    """The ERROR frame of a row of the table; `fields` are optional fields of the frame.

    `retry_after_ms` defaults to that of the row. An unknown name becomes INTERNAL.
    """
    row = code_of(name)
    delay = row.retry_after_ms if retry_after_ms is None else retry_after_ms
    return Error(
        row.code,
        row.name,
        row.temporary,
        shown(detail, DETAIL_MAX),
        rid,
        delay,
        field and shown(field, FIELD_MAX),
        **fields,
    )


def error_for(
    failure: BaseException, rid: int | None = None, *, client_message_id: str | None = None
) -> Error:
    """The ERROR frame of an exception. `rid` stands in where the exception names none.

    With `client_message_id` the request was a send: a store failure is then OUTCOME_UNKNOWN unless the
    store knows that nothing was applied.
    """
    own: dict[str, Any] = {} if client_message_id is None else {"client_message_id": client_message_id}
    if isinstance(failure, ProtocolError):
        at = failure.rid if rid is None else rid
        return error(failure.code, failure.detail, at, field=failure.field, **own)
    if isinstance(failure, AdmissionRefused):
        return error(failure.code, failure.detail, rid, retry_after_ms=failure.retry_after_ms, **own)
    if isinstance(failure, SyncVerdict):
        verdict: dict[str, Any] = {**failure.fields, **own}
        return error(failure.code, failure.detail, rid, **verdict)
    if isinstance(failure, StoreError):
        if client_message_id is not None and failure.outcome is not Outcome.NOT_APPLIED:
            return error("OUTCOME_UNKNOWN", "the message may or may not be committed", rid, **own)
        if isinstance(failure, StoreUnavailable):
            return error("STORE_UNAVAILABLE", "a store cannot be reached", rid, **own)
        return error("STORE_UNAVAILABLE", "a store did not answer as expected", rid, **own)
    if isinstance(failure, TimeoutError):
        name = "STORE_UNAVAILABLE" if client_message_id is None else "OUTCOME_UNKNOWN"
        return error(name, "no answer in time", rid, **own)
    what = type(failure).__name__ if isinstance(failure, QimError) else "unexpected failure"
    return error("INTERNAL", what, rid, **own)


def shown(text: str, most: int) -> str:
    """At most `most` printable characters of a text that a client may have chosen part of.

    So a frame always passes its own schema, and no terminal or log obeys what somebody sent.
    """
    return "".join(c if c.isprintable() else "?" for c in text[:most])
