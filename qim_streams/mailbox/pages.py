"""The bytes of DispatchProgress: pages of done dispatches, index entries, and an open record's chunks.

A *page* says that the offsets `first` to `last` are done and which dispatch_ids they held; its key is
``p`` and the big-endian last and first offsets, so that pages sort by offset, and a replay that is cut
into other batches never overwrites a page that held more. An *index entry* leads from a
dispatch_id to the offset and content digest of its first occurrence. *Open progress* is the set of done
chunks of the one record that is being written in several steps.

Pure. Spec: §5, §14.6.
"""

import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgpack
from blake3 import blake3

from qim_streams.codec import pack_fields, unpack_fields
from qim_streams.errors import RecordError
from qim_streams.ids import ID_BYTES
from qim_streams.records import GroupDispatch

PAGE_PREFIX = b"p"
OPEN_KEY = b"o"  # sorts below every page: a scan of pages never meets it
DIGEST_BYTES = 8

_KEY = struct.Struct(">cqq")
_SEEN = struct.Struct(f">q{DIGEST_BYTES}s")
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Seen(NamedTuple):
    """The first occurrence of a dispatch_id: its offset and content digest."""

    offset: int
    digest: bytes

    def encode(self) -> bytes:
        """16 bytes."""
        return encode_seen(self.offset, self.digest)


encode_seen = _SEEN.pack  # the bytes of a Seen from its offset and digest


def decode_seen(data: bytes) -> Seen:
    """A Seen from its 16 bytes; RecordError if they are not that many."""
    try:
        return Seen(*_SEEN.unpack(data))
    except struct.error as error:
        raise RecordError(f"Seen: {len(data)} bytes, not {_SEEN.size}") from error


class DoneDispatch(NamedTuple):
    """One row of a page."""

    offset: int
    dispatch_id: bytes
    digest: bytes


class Page(NamedTuple):
    """The offsets `first` to `last` (inclusive) are done. `rows` ascend; poison and repeats have none."""

    first: int
    last: int
    written_at_ms: int
    rows: Sequence[DoneDispatch]

    def encode(self) -> bytes:
        """The page's bytes: about 28 per dispatch."""
        rows, first = self.rows, self.first
        deltas = [row.offset - first for row in rows]
        return pack_fields(
            (
                self.first,
                self.last,
                self.written_at_ms,
                b"".join([row.dispatch_id for row in rows]),
                b"".join([row.digest for row in rows]),
                b"" if deltas == list(range(len(deltas))) else struct.pack(f"<{len(deltas)}I", *deltas),
            )
        )


def decode_page(data: bytes) -> Page:
    """A Page from its bytes; RecordError if they are not one."""
    fields = unpack_fields(data, 6, "Page")
    first, last, at, ids, digests, deltas = fields[:6]
    count = len(ids) // ID_BYTES
    if (
        len(ids) != count * ID_BYTES
        or len(digests) != count * DIGEST_BYTES
        or len(deltas) not in (0, 4 * count)
    ):
        raise RecordError("Page: columns of different lengths")
    return Page(first, last, at, list(_rows(first, count, ids, digests, deltas)))


def _rows(first: int, count: int, ids: bytes, digests: bytes, deltas: bytes) -> Iterator[DoneDispatch]:
    offsets = struct.unpack(f"<{count}I", deltas) if deltas else range(count)
    for index, delta in enumerate(offsets):
        yield DoneDispatch(
            first + delta,
            ids[index * ID_BYTES : (index + 1) * ID_BYTES],
            digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES],
        )


def page_key(first: int, last: int) -> bytes:
    """The key of the page of `first` to `last`."""
    return _KEY.pack(PAGE_PREFIX, last, first)


def page_end(key: bytes) -> int | None:
    """The last offset of a page's key, None for another key."""
    if len(key) != _KEY.size or key[:1] != PAGE_PREFIX:
        return None
    return int(_KEY.unpack(key)[1])


class OpenProgress(NamedTuple):
    """Which chunks of the record at `offset` are in the store: {lane: bitmap of chunk indexes}.

    `record` names the record and the plan that its chunks belong to.
    """

    offset: int
    record: str
    done: dict[int, int]

    def encode(self) -> bytes:
        """The value's bytes; bitmaps as big-endian bytes, for they may exceed 64 bits."""
        lanes = {lane: bits.to_bytes((bits.bit_length() + 7) // 8, "big") for lane, bits in self.done.items()}
        return pack_fields((self.offset, self.record, lanes))


def decode_open(data: bytes) -> OpenProgress:
    """An OpenProgress from its bytes; RecordError if they are not one."""
    fields = unpack_fields(data, 3, "OpenProgress")
    if not isinstance(fields[2], dict):
        raise RecordError("OpenProgress: lanes are not a map")
    return OpenProgress(
        fields[0], fields[1], {lane: int.from_bytes(bits, "big") for lane, bits in fields[2].items()}
    )


_CONTENT = (
    "tenant_id",
    "message_id",
    "conversation_id",
    "conversation_seq",
    "last_activity_id",
    "sender_id",
    "membership_version",
    "target_mailbox_shard",
    "kind",
    "sender_ordinal",
    "sender_device_id",
    "client_message_id",
    "body_digest",
    "committed_at",
    "bitmap_version",
)
_content = itemgetter(*map(GroupDispatch._fields.index, _CONTENT))  # all of them in one step


def content_digest(dispatch: GroupDispatch) -> bytes:
    """8 bytes over what must be equal in a repeated dispatch.

    Left out is what a legitimate repetition may change: the Outbox record it came from (a relayed
    message lies there twice), the owner's epoch, and whether the members travel inline.
    """
    return blake3(_pack(_content(dispatch))).digest(DIGEST_BYTES)
