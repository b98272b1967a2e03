"""Hypothesis strategies for every declared frame, made from the schemas."""

from typing import Any

from hypothesis import strategies as st

from qim_streams.wire.frames import CLIENT_FRAMES, SERVER_FRAMES
from qim_streams.wire.kinds import Bool, Bytes, Id16, Int, ListOf, OneOf, Text, TextId, Token
from qim_streams.wire.schema import Schema, Struct

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@~-]{0,127}", fullmatch=True)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a kind, its extremes included."""
    match kind:
        case Int(low, high):
            return st.sampled_from([low, high]) | st.integers(low, high)
        case Bool():
            return st.booleans()
        case TextId():
            return IDS
        case Text(high, low):
            return st.text(
                st.characters(exclude_categories=("Cs", "Cc")), min_size=low, max_size=min(high, 128)
            )
        case Token(high):
            return st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=min(high, 200))
        case OneOf(words):
            return st.sampled_from(words)
        case Id16():
            return st.binary(min_size=16, max_size=16)
        case Bytes():
            return st.binary(max_size=300)
        case ListOf(item, high):
            return st.lists(values(item), max_size=min(high, 40))
        case Struct(schema):
            return instances(schema)
    raise AssertionError(f"no strategy for {kind}")


def instances(schema: Schema) -> st.SearchStrategy[Any]:
    """Values of a schema's class."""
    fields = [
        values(field.kind) if field.required else (st.just(field.default) | (values(field.kind)))
        for field in schema.fields
    ]
    return st.tuples(*fields).map(schema.cls._make)


CLIENT = st.one_of([instances(schema) for schema in CLIENT_FRAMES.values()])
SERVER = st.one_of([instances(schema) for schema in SERVER_FRAMES.values()])
