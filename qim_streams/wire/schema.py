"""How a frame is read from decoded msgpack or JSON: a schema made from an annotated class.

Invariants: only `Malformed` leaves `take*`, and it names the field; every kind refuses None; a field with
a default may be absent or null; unknown fields are ignored, so that a newer peer may add some.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from qim_streams.errors import InvariantViolation
from qim_streams.wire.kinds import Kind, ListOf, Malformed


class Field(NamedTuple):
    """A declared field. `required` is false where absence and null mean `default`."""

    name: str
    kind: Kind
    required: bool
    default: Any
    meaning: str


# How a field is read from one of the two forms: name, take, required, default.
_Reading = tuple[str, Callable[[Any], Any], bool, Any]
_new = tuple.__new__  # what `_make` of a NamedTuple does, without counting


class Schema:
    """The fields of a NamedTuple class whose annotations are ``Annotated[type, Kind, meaning]``."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.fields = tuple(_field(cls, name, hint) for name, hint in _hints(cls))
        self._binary = [(f.name, f.kind.take, f.required, f.default) for f in self.fields]
        self._text = [(f.name, f.kind.take_text, f.required, f.default) for f in self.fields]
        self._nested = [(f.name, nested) for f in self.fields if (nested := _nested(f.kind)) is not None]
        self._give = tuple((f.name, f.kind.give_text) for f in self.fields)

    def take(self, raw: dict[Any, Any]) -> Any:
        """The value of a decoded msgpack map; Malformed names the field."""
        return self._read(raw, self._binary)

    def take_text(self, raw: dict[Any, Any]) -> Any:
        """The value of a decoded JSON object; Malformed names the field."""
        return self._read(raw, self._text)

    def plain(self, value: Any) -> dict[str, Any]:
        """The msgpack map of a value; None is left out, nested structures become maps."""
        found = dict(zip(self.cls._fields, value, strict=True))
        for name, plain in self._nested:
            inner = found[name]
            if inner is not None:
                found[name] = plain(inner)
        return {name: v for name, v in found.items() if v is not None} if None in value else found

    def plain_text(self, value: Any) -> dict[str, Any]:
        """The JSON object of a value; None is left out."""
        pairs = zip(self._give, value, strict=True)
        return {name: give(v) for (name, give), v in pairs if v is not None}

    def _read(self, raw: dict[Any, Any], fields: Sequence[_Reading]) -> Any:
        get = raw.get
        try:
            # `take` refuses the None of a required field that is absent, as it does any wrong value.
            values = [
                take(value) if (value := get(name)) is not None or required else default
                for name, take, required, default in fields
            ]
        except Malformed:
            raise _explained(raw, fields) from None
        return _new(self.cls, values)


def _explained(raw: dict[Any, Any], fields: Sequence[_Reading]) -> Malformed:
    """Why `raw` cannot be read: the first field that is wrong. Asked only when there is one."""
    for name, take, required, _ in fields:
        value = raw.get(name)
        if value is None:
            if required:
                return Malformed("is missing").inside(name)
            continue
        try:
            take(value)
        except Malformed as error:
            return error.inside(name)
    raise InvariantViolation("a frame was refused and has no wrong field")


@dataclass(frozen=True, slots=True)
class Struct:
    """A nested structure."""

    schema: Schema

    def take(self, value: Any) -> Any:
        """The structure of a decoded msgpack map."""
        if not isinstance(value, dict):
            raise Malformed("must be a map")
        return self.schema.take(value)

    def take_text(self, value: Any) -> Any:
        """The structure of a decoded JSON object."""
        if not isinstance(value, dict):
            raise Malformed("must be a map")
        return self.schema.take_text(value)

    def give_text(self, value: Any) -> dict[str, Any]:
        """The JSON object."""
        return self.schema.plain_text(value)

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"{self.schema.cls.__name__}"


def _hints(cls: type[Any]) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return [(name, hints[name]) for name in cls._fields]


def _field(cls: type[Any], name: str, hint: Any) -> Field:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{cls.__name__}.{name}: expected Annotated[type, Kind, meaning]")
    _, kind, *rest = get_args(hint)
    defaults: dict[str, Any] = cls._field_defaults
    return Field(name, kind, name not in defaults, defaults.get(name), " ".join(rest))


def _nested(kind: Kind) -> Callable[[Any], Any] | None:
    """How values of a kind with structures inside become msgpack values; None: they are such values."""
    if isinstance(kind, Struct):
        return kind.schema.plain
    if isinstance(kind, ListOf):
        item = _nested(kind.item)
        return list if item is None else lambda values: [item(one) for one in values]
    return None
