"""A sample of every kind of record that lies in a log, a table, Redis or the archive, and how it is read.

`python -m tests.support.record_kinds` prints the bytes that this version writes, as they are kept for good in
``tests/data/records-<version>.json``: what a version wrote must be readable by every later one.
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyroaring import BitMap

from qim_streams.archive import rocksdb_layout
from qim_streams.fanout.progress import OutboxPage, decode_outbox_page
from qim_streams.mailbox.floors import Floor, decode_floor
from qim_streams.mailbox.kept import KeptPositions, decode_kept
from qim_streams.mailbox.pages import (
    DoneDispatch,
    OpenProgress,
    Page,
    Seen,
    decode_open,
    decode_page,
    decode_seen,
)
from qim_streams.membership import bitmaps, rows
from qim_streams.membership.ports import Conversation, Member
from qim_streams.mentions import Mentions, decode_mentions
from qim_streams.notification.records import (
    PushDevice,
    PushResult,
    PushSettings,
    PushTask,
    decode_device,
    decode_result,
    decode_settings,
    decode_task,
)
from qim_streams.ownership.log_fence import BARRIER_KEY, barrier_epoch, encode_barrier
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    Presence,
    PresenceReady,
    PushBatch,
    PushItem,
    Recipient,
    UserMailboxEntry,
    decode_dispatch,
    decode_entry,
    decode_message,
    decode_outbox,
    decode_presence,
    decode_push,
    pack_ordinals,
    unpack_ordinals,
)
from qim_streams.rooms.records import RoomRecord, decode_room
from qim_streams.sessions.projection_records import Registration, decode_registration
from qim_streams.sessions.state import UserConversationState, decode_state
from qim_streams.sharding import mapping_log
from qim_streams.sharding.marker import MARKER_KEY, encode_marker, marked_version
from qim_streams.sharding.rules import Pair, ShardMapping, Split, Step
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.sync.boundaries import EpochBoundary, decode_boundary

ID, AT, SENT = bytes(range(16)), 1_700_000_000_000, 1_700_000_000_123
LANES: Final = tuple(range(100, 164))
MESSAGE = MessageRecord(
    7, 3, "acme", "team", ID, ID[::-1], "ann", 130, "phone", "m1", 5, SENT, 0, 0, b"body\x00\xff"
)
HEAD = Conversation(
    "acme",
    "team",
    "group",
    4,
    0,
    "Téam",
    "members",
    "invite",
    "joined",
    1_000,
    2,
    AT,
    "ann",
    False,
)
MEMBER = Member("ben", 194, "admin", True, ((1, 5), (9, None)))


class Kind(NamedTuple):
    """`write()` gives the bytes of `value`, `read(bytes)` gives `value` back."""

    value: Any
    write: Callable[[], bytes]
    read: Callable[[bytes], Any]


def _of(value: Any, read: Callable[[bytes], Any]) -> Kind:
    return Kind(value, value.encode, read)


def _membership(row: Any, value: Any) -> Kind:
    return Kind((HEAD.version, value), lambda: row.value, lambda data: rows.decode_log_row(row.key, data))


KINDS: Final[dict[str, Kind]] = {
    "MessageRecord": _of(MESSAGE, decode_message),
    "MessageRecord, edited": _of(MESSAGE._replace(state=1, extra=(2,)), decode_message),
    "OutboxRecord": _of(
        OutboxRecord(MESSAGE.encode(), 5, 0, {0: (2, pack_ordinals([130])), 3: (1, b"")}), decode_outbox
    ),
    "OutboxRecord, large group": _of(OutboxRecord(MESSAGE.encode(), 5, 0, None), decode_outbox),
    "barrier": Kind(9, lambda: encode_barrier(9), lambda data: barrier_epoch(BARRIER_KEY, data)),
    "marker": Kind(2, lambda: encode_marker(2), lambda data: marked_version(MARKER_KEY, data)),
    "GroupDispatch": _of(
        GroupDispatch(
            "acme", ID, ID, "team", 7, ID, "ann", 5, 3, 2, 0, 130, "phone", "m1", b"8 bytes.", 1, 4_711,
            SENT, 2, pack_ordinals([130, 194]),
        ),
        decode_dispatch,
    ),
    "UserMailboxEntry": _of(
        UserMailboxEntry(0, ID, "team", 7, "ann", 3, SENT, "m1", 4), decode_entry
    ),
    "Presence": _of(Presence("acme", "ben", 194, "phone", 2, 1 << 40, 6, AT), decode_presence),
    "PushBatch": _of(
        PushBatch(
            "acme", 3, 5,
            [PushItem(4_711, 0, b"\x81\xa1a\x01", [Recipient(1 << 40, 6, ID, 3, 1, None)], SENT)],
            [PresenceReady(1 << 40, 6, 4_700)],
        ),
        decode_push,
    ),
    "ordinals": Kind([1, 1 << 31], lambda: pack_ordinals([1, 1 << 31]), unpack_ordinals),
    "membership head": _membership(rows.head_row(HEAD), HEAD),
    "membership member": _membership(rows.member_row(HEAD, MEMBER), MEMBER),
    "member": Kind(MEMBER, lambda: rows.encode_member(MEMBER), lambda data: rows.decode_member("ben", data)),
    "membership version": Kind(
        (AT, {0: 2, 3: 1}),
        lambda: rows.encode_version(AT, {3: 1, 0: 2}),
        rows.decode_version,
    ),
    "bitmap": Kind(
        [1, 5, 70_000],
        lambda: bitmaps.encode(BitMap([1, 5, 70_000])),
        lambda data: list(bitmaps.decode(data)),
    ),
    "RoomRecord": _of(
        RoomRecord("acme", "stage", 4, 17, 0, ID, "ann", "m1", AT, b"hi", "ben", 9), decode_room
    ),
    "PushTask": _of(
        PushTask("acme", "ben", 194, "phone", ID, "team", 7, "ann", SENT, 1_700_000_000_456, 3),
        decode_task,
    ),
    "PushDevice": _of(
        PushDevice("acme", "ben", 194, "phone", "apns", "app", "token", 8, "gone"), decode_device
    ),
    "PushSettings": _of(PushSettings("acme", "ben", 1_320, 420, "Europe/Berlin", True, 8), decode_settings),
    "PushResult": _of(
        PushResult(
            "acme", "ben", "phone", ID[::-1], ID, "team", 7, "apns", "dead", "Unregistered", SENT,
            1_700_000_000_456,
        ),
        decode_result,
    ),
    "Mentions": _of(Mentions(("ben", "cid"), True), decode_mentions),
    "OutboxPage": _of(OutboxPage(4_711, AT, 5, 2), decode_outbox_page),
    "Page": Kind(
        (4_700, 4_711, AT, [(4_700, ID, b"12345678"), (4_711, ID[::-1], b"87654321")]),
        Page(
            4_700, 4_711, AT,
            [DoneDispatch(4_700, ID, b"12345678"), DoneDispatch(4_711, ID[::-1], b"87654321")],
        ).encode,
        lambda data: (*decode_page(data)[:3], [tuple(row) for row in decode_page(data).rows]),
    ),
    "Seen": _of(Seen(4_711, b"12345678"), decode_seen),
    "OpenProgress": _of(OpenProgress(4_711, "0f" * 16, {0: 3, 63: 1}), decode_open),
    "Floor": _of(Floor(LANES, 5, AT, 4), decode_floor),
    "KeptPositions": _of(KeptPositions(1, 4, 4_711), decode_kept),
    "EpochBoundary": _of(EpochBoundary(AT, LANES), decode_boundary),
    "UserConversationState": _of(
        UserConversationState("ben", "team", 9, 1, AT, 5, True, 17, 3, 2, (4, 6)), decode_state
    ),
    "Registration": Kind(
        Registration("acme", 194, "team", 1, AT, False),
        Registration("acme", 194, "team", 1, AT, False).encode,
        lambda data: decode_registration("acme", b"194:team", data),
    ),
    "ShardMapping": Kind(
        ShardMapping(2, 3, (Split(1, (Pair(0, 2, 0, 1),), Step.SETTLED, (1, 2), (3, 4), (5, 6)),)),
        lambda: mapping_log.encode(
            ShardMapping(2, 3, (Split(1, (Pair(0, 2, 0, 1),), Step.SETTLED, (1, 2), (3, 4), (5, 6)),))
        ),
        mapping_log.decode,
    ),
    "DeadLetter": _of(
        DeadLetter("qim.outbox.v1", 1, 17, b"k", b"v", 1, "RecordError", "broken", "mailbox-node", AT),
        DeadLetter.decode,
    ),
    "archived message": Kind(
        (MESSAGE.encode(), 2),
        lambda: rocksdb_layout.encode_message(MESSAGE.encode(), 2),
        rocksdb_layout.decode_message,
    ),
    "archived state": Kind(
        (b"state", 9), lambda: rocksdb_layout.encode_state(b"state", 9), rocksdb_layout.decode_state
    ),
    "archive watermark": Kind(
        4_711, lambda: rocksdb_layout.encode_watermark(4_711), rocksdb_layout.decode_watermark
    ),
    "archive fence": Kind(5, lambda: rocksdb_layout.encode_fence(5), rocksdb_layout.decode_fence),
}  # fmt: skip


def main() -> None:
    """Print the bytes of every kind."""
    print(json.dumps({name: kind.write().hex() for name, kind in KINDS.items()}, indent=1))


if __name__ == "__main__":
    main()
