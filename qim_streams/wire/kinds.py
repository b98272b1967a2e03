"""Kinds of field values: the checks behind ``frames``.

Every kind has two external forms: the binary one (msgpack: ids and bodies are bytes) and the text one
(JSON: ids are 32 lower-case hex digits, bytes are base64url without padding). `take*` turns an external
value into the internal one or raises `Malformed`; `give_text` goes back. An internal value is its own
binary form.

Invariants: no exception but `Malformed` for any decoded value; a text that passes can be encoded as
UTF-8; integers are exact in every JSON reader (at most 2^53 - 1).
"""

import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qim_streams.ids import ID_BYTES, TEXT_ID_MAX, has_control, is_text_id

INT_MAX = 2**53 - 1
U32_MAX = 2**32 - 1
_HEX_ID = re.compile(r"[0-9a-f]{32}\Z")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*\Z")
_PRINTABLE = re.compile(r"[\x21-\x7e]*\Z")
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


class Malformed(ValueError):
    """A value does not fit its kind. `where` is the path of the field inside the frame."""

    def __init__(self, detail: str, where: str = "") -> None:
        super().__init__(detail)
        self.detail, self.where = detail, where

    def inside(self, name: str) -> "Malformed":
        """The same, seen from the enclosing structure."""
        joint = "" if not self.where or self.where.startswith("[") else "."
        return Malformed(self.detail, f"{name}{joint}{self.where}")


class Kind(Protocol):
    """A kind of value. `describe` is the text of the document."""

    def take(self, value: Any) -> Any:
        """The internal value of a binary one; Malformed if it does not fit."""

    def take_text(self, value: Any) -> Any:
        """The internal value of a JSON one; Malformed if it does not fit."""

    def give_text(self, value: Any) -> Any:
        """The JSON value of an internal one."""

    def describe(self) -> str:
        """Type and bounds, for people."""


class _Same:
    """Kinds whose binary and text forms are equal."""

    def take(self, value: Any) -> Any:
        """See `Kind.take`."""
        raise NotImplementedError

    def take_text(self, value: Any) -> Any:
        """See `Kind.take_text`."""
        return self.take(value)

    def give_text(self, value: Any) -> Any:
        """See `Kind.give_text`."""
        return value


@dataclass(frozen=True, slots=True)
class Int(_Same):
    """An integer, both ends inclusive. Booleans are not integers."""

    low: int
    high: int = INT_MAX

    def take(self, value: Any) -> int:
        """The integer."""
        if type(value) is not int:
            raise Malformed("must be an integer")
        if not self.low <= value <= self.high:
            raise Malformed(f"must be {self.low} to {self.high}")
        return value

    def describe(self) -> str:
        """See `Kind.describe`."""
        high = "2^53-1" if self.high == INT_MAX else str(self.high)
        return f"int {self.low}..{high}"


@dataclass(frozen=True, slots=True)
class Bool(_Same):
    """true or false."""

    def take(self, value: Any) -> bool:
        """The truth value."""
        if type(value) is not bool:
            raise Malformed("must be true or false")
        return value

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "bool"


@dataclass(frozen=True, slots=True)
class TextId(_Same):
    """An id of the one alphabet of ``ids.is_text_id``."""

    def take(self, value: Any) -> str:
        """The id."""
        if not is_text_id(value):
            raise Malformed(
                f"must be 1 to {TEXT_ID_MAX} characters of A-Z a-z 0-9 . _ @ ~ -, first a letter or digit"
            )
        return value  # type: ignore[no-any-return]  # is_text_id has seen to it

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "id"


@dataclass(frozen=True, slots=True)
class Text(_Same):
    """Text for people: at most `high` characters, encodable, without control characters."""

    high: int
    low: int = 0

    def take(self, value: Any) -> str:
        """The text."""
        if not isinstance(value, str):
            raise Malformed("must be text")
        if not self.low <= len(value) <= self.high:
            raise Malformed(f"must have {self.low} to {self.high} characters")
        if has_control(value):
            raise Malformed("must not contain control characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Malformed("must not contain lone surrogates") from None
        return value

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"text {self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class Token(_Same):
    """Visible ASCII without spaces: tokens, cursors, URLs."""

    high: int

    def take(self, value: Any) -> str:
        """The token."""
        if not isinstance(value, str):
            raise Malformed("must be text")
        if len(value) > self.high:
            raise Malformed(f"must have at most {self.high} characters")
        if not _PRINTABLE.match(value):
            raise Malformed("must be visible ASCII")
        return value

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"ASCII ..{self.high}"


@dataclass(frozen=True, slots=True)
class OneOf(_Same):
    """One of a few words."""

    words: tuple[str, ...]

    def take(self, value: Any) -> str:
        """The word."""
        if not isinstance(value, str) or value not in self.words:
            raise Malformed(f"must be one of {', '.join(self.words)}")
        return value

    def describe(self) -> str:
        """See `Kind.describe`."""
        return " \\| ".join(self.words)


@dataclass(frozen=True, slots=True)
class Id16:
    """A 16-byte id."""

    def take(self, value: Any) -> bytes:
        """The id."""
        if not isinstance(value, bytes) or len(value) != ID_BYTES:
            raise Malformed(f"must be {ID_BYTES} bytes")
        return value

    def take_text(self, value: Any) -> bytes:
        """The id of its hex digits."""
        if not isinstance(value, str) or not _HEX_ID.match(value):
            raise Malformed(f"must be {2 * ID_BYTES} lower-case hex digits")
        return bytes.fromhex(value)

    def give_text(self, value: bytes) -> str:
        """The hex digits."""
        return value.hex()

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "id16"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Opaque bytes, at most `high` of them."""

    high: int

    def take(self, value: Any) -> bytes:
        """The bytes."""
        if not isinstance(value, bytes):
            raise Malformed("must be bytes")
        if len(value) > self.high:
            raise Malformed(f"must have at most {self.high} bytes")
        return value

    def take_text(self, value: Any) -> bytes:
        """The bytes of their base64url form, padding refused."""
        if not isinstance(value, str) or not _BASE64URL.match(value):
            raise Malformed("must be base64url without padding")
        if len(value) * 3 // 4 > self.high:
            raise Malformed(f"must have at most {self.high} bytes")
        return from_base64url(value)

    def give_text(self, value: bytes) -> str:
        """The base64url form."""
        return to_base64url(value)

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"bytes ..{self.high}"


@dataclass(frozen=True, slots=True)
class ListOf:
    """At most `high` values of one kind."""

    item: Kind
    high: int

    def take(self, value: Any) -> list[Any]:
        """The values."""
        return self._each(value, self.item.take)

    def take_text(self, value: Any) -> list[Any]:
        """The values of their JSON forms."""
        return self._each(value, self.item.take_text)

    def give_text(self, value: Sequence[Any]) -> list[Any]:
        """The JSON forms."""
        return [self.item.give_text(one) for one in value]

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"list ..{self.high} of {self.item.describe()}"

    def _each(self, value: Any, take: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(value, list):
            raise Malformed("must be a list")
        if len(value) > self.high:
            raise Malformed(f"must have at most {self.high} items")
        taken: list[Any] = []
        try:
            for one in value:
                taken.append(take(one))  # noqa: PERF401 - the index of the bad item is needed below
        except Malformed as error:
            raise error.inside(f"[{len(taken)}]") from None
        return taken


def to_base64url(value: bytes) -> str:
    """Base64url without padding."""
    return binascii.b2a_base64(value, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def from_base64url(value: str) -> bytes:
    """The bytes of base64url without padding; Malformed when it is not that."""
    try:
        raw = value.encode("ascii").translate(_FROM_URL)
        return binascii.a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
    except ValueError:
        raise Malformed("must be base64url without padding") from None
