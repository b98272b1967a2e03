"""Bytes of membership: member rows and version rows of the store, rows of the change log.

Member row (hash ``gm``, value of a user)::

    byte 0     'A' active, 'L' left           read by the commit script
    byte 1     'o' owner, 'a' admin, 'm' member
    bytes 2-5  ordinal, u32 big-endian
    then       u64 big-endian edges: joined, left, joined, left, ... (odd count while active)

Version row (hash ``gv``, value of a version): u64 time of the change in milliseconds, then pairs of
u32 shard and u64 bitmap version: the whole map, or what this version changed (`rules.is_checkpoint`).
Time 0: a version that was put back without its members (`rules.UNKNOWN_AT_MS`); later ones build on it.
Bitmap version 0 means that nobody is left in the shard.

Change log rows are records of ``codec``; the key is ``tenant NUL conversation NUL user``, for the head
``tenant NUL conversation NUL``. They carry the version, so that a rebuild can tell how far it came.

Spec: §4.
"""

import struct
from collections.abc import Mapping

from qim_streams.codec import pack_fields, unpack_fields
from qim_streams.errors import RecordError
from qim_streams.membership.ports import Conversation, Intervals, Member, MembershipRow
from qim_streams.records import record_key

ROLE_LETTERS = {"owner": "o", "admin": "a", "member": "m"}
_ROLES = {letter.encode(): role for role, letter in ROLE_LETTERS.items()}
_HEAD = struct.Struct(">ccI")
_EDGE_BYTES = 8
_VERSION_HEAD = struct.Struct(">Q")
_PAIR = struct.Struct(">IQ")

_HEAD_ROW, _MEMBER_ROW = 0, 1


def encode_member(member: Member) -> bytes:
    """The member row of a member."""
    edges = [edge for interval in member.intervals for edge in interval if edge is not None]
    state = b"A" if member.active else b"L"
    head = _HEAD.pack(state, ROLE_LETTERS[member.role].encode(), member.ordinal)
    return head + struct.pack(f">{len(edges)}Q", *edges)


def decode_member(user_id: str, row: bytes) -> Member:
    """The member of a member row; RecordError if it is not one."""
    if len(row) < _HEAD.size or (len(row) - _HEAD.size) % _EDGE_BYTES:
        raise RecordError(f"member row of {len(row)} bytes")
    state, letter, ordinal = _HEAD.unpack_from(row)
    count = (len(row) - _HEAD.size) // _EDGE_BYTES
    active = state == b"A"
    if letter not in _ROLES or state not in (b"A", b"L") or active != bool(count % 2):
        raise RecordError(f"member row: state {state!r}, role {letter!r}, {count} edges")
    edges: list[int | None] = list(struct.unpack_from(f">{count}Q", row, _HEAD.size))
    if active:
        edges.append(None)
    intervals: Intervals = tuple(zip((e for e in edges[::2] if e is not None), edges[1::2], strict=True))
    return Member(user_id, ordinal, _ROLES[letter], active, intervals)


def encode_version(at_ms: int, version_map: Mapping[int, int]) -> bytes:
    """The version row of a time and a (whole or partial) map."""
    return _VERSION_HEAD.pack(at_ms) + b"".join(_PAIR.pack(*pair) for pair in sorted(version_map.items()))


def decode_version(row: bytes) -> tuple[int, dict[int, int]]:
    """Time and map of a version row; RecordError if it is not one."""
    if len(row) < _VERSION_HEAD.size or (len(row) - _VERSION_HEAD.size) % _PAIR.size:
        raise RecordError(f"version row of {len(row)} bytes")
    (at_ms,) = _VERSION_HEAD.unpack_from(row)
    return at_ms, dict(_PAIR.iter_unpack(row[_VERSION_HEAD.size :]))


def head_row(head: Conversation) -> MembershipRow:
    """The change log row of a head. `seq` is left out: it changes with every message."""
    value = pack_fields(
        (
            _HEAD_ROW,
            head.version,
            head.kind,
            head.name,
            head.send_policy,
            head.join_policy,
            head.history_policy,
            head.members_max,
            head.members_active,
            head.created_at,
            head.creator_id,
            head.dismissed,
        )
    )
    key = record_key(head.tenant_id, head.conversation_id, "")
    return MembershipRow(head.tenant_id, head.conversation_id, key, value)


def member_row(head: Conversation, member: Member) -> MembershipRow:
    """The change log row of a member as of the head's version."""
    fields = (_MEMBER_ROW, head.version, member.ordinal, member.role, member.active, member.intervals)
    key = record_key(head.tenant_id, head.conversation_id, member.user_id)
    return MembershipRow(head.tenant_id, head.conversation_id, key, pack_fields(fields))


def decode_log_row(key: bytes, value: bytes) -> tuple[int, Conversation | Member]:
    """(version, head or member) of a change log row; RecordError if it is not one. `seq` of a head is 0."""
    parts = key.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise RecordError("membership row: the key is not tenant NUL conversation NUL user")
    fields = unpack_fields(value, 6, "membership row")
    try:
        if fields[0] == _HEAD_ROW:
            kind, name, send, join, history, most, active, created_at, creator, dismissed = fields[2:12]
            return fields[1], Conversation(
                parts[0], parts[1], kind, fields[1], 0, name, send, join, history, most, active,
                created_at, creator, bool(dismissed),
            )  # fmt: skip
        intervals = tuple((joined, left) for joined, left in fields[5])
        return fields[1], Member(parts[2], fields[2], fields[3], bool(fields[4]), intervals)
    except (TypeError, ValueError) as error:
        raise RecordError(f"membership row: {error}") from error
