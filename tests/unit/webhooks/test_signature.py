"""Signatures: the published example of the form, and what a receiver refuses."""

import base64
import time

from qim_streams.webhooks.signature import headers, is_genuine, signature
from tests.support.doc_code import defined_by, python_blocks

SECRET = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def test_the_example_of_standard_webhooks() -> None:
    made = signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_takes_what_is_signed_and_of_these_minutes() -> None:
    sent = headers(SECRET, "id.1", 1_000, b"{}")
    assert is_genuine(SECRET, sent, b"{}", 1_010)
    assert not is_genuine(SECRET, sent, b"{} ", 1_010)
    assert not is_genuine(SECRET, sent, b"{}", 1_000 + 3_600)
    assert not is_genuine(b"other", sent, b"{}", 1_010)
    assert not is_genuine(SECRET, {}, b"{}", 1_010)


def test_the_code_that_the_page_gives_to_receivers() -> None:
    """docs/webhooks.md: it takes what we sign, and nothing else."""
    (code,) = python_blocks("docs/webhooks.md")
    theirs = defined_by(code)["is_genuine"]
    sent = headers(SECRET, "id.1", int(time.time()), b"{}")
    assert theirs(SECRET, sent, b"{}")
    assert not theirs(SECRET, sent, b"{} ")
    assert not theirs(b"other", sent, b"{}")
    assert not theirs(SECRET, headers(SECRET, "id.1", int(time.time()) - 3_600, b"{}"), b"{}")
