"""Records of earlier versions are read by this one: bytes that were written then, kept for good.

``tests/data/records-<version>.json`` holds what each version wrote; the oldest file was written by code from
before 0.1.0, when some records had fewer fields. When a record gets a new form, add a kind to
`tests/support/record_kinds.py`, print its bytes into the file of the version, and change no line there.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qim_streams import __version__
from qim_streams.codec import pack_fields
from qim_streams.errors import RecordError
from qim_streams.fanout.progress import OutboxPage
from qim_streams.mailbox.floors import Floor
from tests.support.record_kinds import KINDS, LANES

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "data").glob("records-*.json"))
# What had fewer fields then, and what stands in their place now.
THEN: dict[tuple[str, str], Any] = {
    ("records-before-0.1.0", "OutboxPage"): OutboxPage(4_711, 1_700_000_000_000, 0, 0),
    ("records-before-0.1.0", "Floor"): Floor(LANES, 5, 1_700_000_000_000, 0),
}
# Decoders of what lies in no log, table or store: frames, arguments, and pieces of the kinds above.
ELSEWHERE = {
    "decode_place",  # a cursor of a page that is shown
    "decode_note",  # a signal, gone when nobody hears it
}
CASES = [(path, name) for path in FILES for name in json.loads(path.read_text())]


def _fields(data: bytes) -> list[Any]:
    """The fields of a record that is a version byte and a list of them; none of any other form."""
    if data[:1] != b"\x01":
        return []
    try:
        fields = msgpack.unpackb(data[1:], strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return []
    return fields if isinstance(fields, list) else []


@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda one: getattr(one, "stem", one))
def test_what_was_written_then_is_read_now(path: Path, name: str) -> None:
    data = bytes.fromhex(json.loads(path.read_text())[name])
    assert KINDS[name].read(data) == THEN.get((path.stem, name), KINDS[name].value)


def test_every_kind_is_kept_for_this_version() -> None:
    """A kind whose bytes are not kept would change without anybody noticing."""
    (current,) = [path for path in FILES if path.stem == f"records-{__version__}"]
    assert json.loads(current.read_text()).keys() == KINDS.keys()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if _fields(kind.write())])
def test_a_field_that_a_later_version_adds_does_not_stop_this_one(name: str) -> None:
    """Roles are upgraded one after the other: readers come after writers, now and then."""
    kind = KINDS[name]
    read = kind.read(pack_fields((*_fields(kind.write()), "added later")))
    assert type(read) is type(kind.value)


@pytest.mark.parametrize("name", ["MessageRecord", "Seen", "Page"])
def test_another_version_of_a_fixed_form_is_refused_and_not_guessed(name: str) -> None:
    """Poison, not garbage: forms without room for fields say which version they are, or how long."""
    data = KINDS[name].write()
    with pytest.raises(RecordError):
        KINDS[name].read(b"\x63" + data if name != "MessageRecord" else b"\x02" + data[1:])


def test_every_decoder_of_a_record_has_a_kind() -> None:
    """A record that is added without a kind fails here."""
    helper = (ROOT / "tests" / "support" / "record_kinds.py").read_text()
    found = set()
    for path in (ROOT / "qim_streams").rglob("*.py"):
        if path.parts[-2] in ("wire", "client", "loadgen", "testing", "api", "console", "cli"):
            continue
        found |= set(re.findall(r"^def (decode_\w+)\(", path.read_text(), re.MULTILINE))
    assert found > {"decode_outbox", "decode_state"}
    assert sorted(name for name in found - ELSEWHERE if name not in helper) == []
