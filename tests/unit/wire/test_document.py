"""``docs/protocol.md`` is what the tables say; every frame has an example and every error a row."""

from pathlib import Path

import pytest

from qim_streams.errors import (
    AdmissionRefused,
    FencedError,
    Outcome,
    ProtocolError,
    StoreError,
    StoreUnavailable,
    SyncVerdict,
)
from qim_streams.wire import CODECS
from qim_streams.wire.answers import error, error_for
from qim_streams.wire.codes import BY_CODE, BY_NAME, TABLE
from qim_streams.wire.document import document
from qim_streams.wire.examples import CLIENT_EXAMPLES, SERVER_EXAMPLES
from qim_streams.wire.frames import CLIENT_FRAMES, NAME_OF, SERVER_FRAMES, Error

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_document_is_current() -> None:
    """Run ``python -m qim_streams.wire.document > docs/protocol.md`` after a change of the tables."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def test_every_frame_has_an_example_that_decodes() -> None:
    """An example is a frame of the name it stands under."""
    assert CLIENT_EXAMPLES.keys() == CLIENT_FRAMES.keys()
    assert SERVER_EXAMPLES.keys() == SERVER_FRAMES.keys()
    for codec in CODECS.values():
        for name, example in CLIENT_EXAMPLES.items():
            assert NAME_OF[type(codec.decode_client(codec.encode(example)))] == name
        for name, answer in SERVER_EXAMPLES.items():
            assert NAME_OF[type(codec.decode_server(codec.encode(answer)))] == name


def test_error_numbers_and_names_are_unique() -> None:
    """One number, one name, one row; temporary rows say when to come back."""
    assert len(BY_CODE) == len(BY_NAME) == len(TABLE)
    for row in TABLE:
        assert row.temporary == (row.retry_after_ms is not None)
        assert 4000 < row.ws_close_code < 5000


@pytest.mark.parametrize(
    ("failure", "name"),
    [
        (ProtocolError("FIELD_INVALID", "x", field="rid", rid=3), "FIELD_INVALID"),
        (AdmissionRefused("RATE_LIMITED", "x", retry_after_ms=7), "RATE_LIMITED"),
        (SyncVerdict("CURSOR_EXPIRED", "x", rebuild_required=True), "CURSOR_EXPIRED"),
        (StoreUnavailable("secret-host:6379 refused"), "STORE_UNAVAILABLE"),
        (StoreError("secret-host"), "STORE_UNAVAILABLE"),
        (TimeoutError("secret-host"), "STORE_UNAVAILABLE"),
        (FencedError("s:1 secret-host", 1), "INTERNAL"),
        (RuntimeError("secret-host"), "INTERNAL"),
    ],
)
def test_every_failure_has_an_answer(failure: Exception, name: str) -> None:
    """Details of drivers and of unforeseen errors never reach a client."""
    answer = error_for(failure, 3)
    assert (answer.name, answer.rid) == (name, 3)
    assert "secret" not in answer.detail
    for codec in CODECS.values():
        assert codec.decode_server(codec.encode(answer)) == answer


def test_a_send_of_unknown_outcome_says_so() -> None:
    """Only a store that knows that nothing happened answers otherwise."""
    lost = error_for(StoreUnavailable("cut"), 1, client_message_id="x")
    assert (lost.name, lost.client_message_id) == ("OUTCOME_UNKNOWN", "x")
    refused = error_for(StoreUnavailable("refused", Outcome.NOT_APPLIED), 1, client_message_id="x")
    assert refused.name == "STORE_UNAVAILABLE"


def test_any_detail_fits_the_frame() -> None:
    """A detail with control characters, surrogates or too much text becomes one that passes."""
    for detail in ("a\nb\x00c", "\ud800", "x" * 10_000, "é"):
        answer = error("BAD_FRAME", detail)
        for codec in CODECS.values():
            assert isinstance(codec.decode_server(codec.encode(answer)), Error)
    assert error("NO_SUCH_NAME", "x").name == "INTERNAL"
