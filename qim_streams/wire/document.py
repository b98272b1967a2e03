"""Prints ``docs/protocol.md`` from the tables: ``python -m qim_streams.wire.document > docs/protocol.md``.

A test holds the file against this module, so the document cannot drift from the code.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from qim_streams import limits
from qim_streams.wire import JSON, MSGPACK, SUBPROTOCOLS
from qim_streams.wire.codes import TABLE, WS_CLOSE_BASE
from qim_streams.wire.examples import CLIENT_EXAMPLES, SERVER_EXAMPLES
from qim_streams.wire.frames import CLIENT_FRAMES, SERVER_FRAMES, Event, Frame, HistoryBreak, Message
from qim_streams.wire.frames_group import MemberRow
from qim_streams.wire.frames_rooms import RoomMessage, RoomPart
from qim_streams.wire.frames_sessions import LastMessage, SessionRow
from qim_streams.wire.schema import Schema

_STRUCTURES = (
    Event, Message, HistoryBreak, MemberRow, SessionRow, LastMessage, RoomPart, RoomMessage
)  # fmt: skip
_INTRO = f"""\
# Client protocol

Made by `python -m qim_streams.wire.document` from the tables in `qim_streams/wire/`. Do not edit by hand.

WebSocket at `/ws`. The subprotocol chooses the encoding: `{SUBPROTOCOLS[0]}` (binary messages, one
msgpack map each) or `{SUBPROTOCOLS[1]}` (text messages, one JSON object each). A frame is a map with `t` (its
name) and its fields. An absent field and null are the same; unknown fields are ignored.

* In msgpack an `id16` is 16 bytes and `bytes` are bytes. In JSON an `id16` is 32 lower-case hex digits and
  `bytes` are base64url without padding.
* An `id` has 1 to 128 characters of `A-Z a-z 0-9 . _ @ ~ -`, the first a letter or digit.
* `rid` names a request. Its answer, or the ERROR in its place, repeats it. Answers may come in another order
  than requests; keep `rid`s of unanswered requests distinct.
* A client frame has at most {limits.FRAME_BYTES_MAX} bytes (the operator may move it) and nests at most
  {limits.FRAME_DEPTH_MAX} deep; a larger one ends the connection with close code 1009. A server frame has at
  most {limits.SERVER_FRAME_BYTES_MAX} bytes. Nothing is compressed.

## A session

1. `AUTH` is the first frame; nothing else but PING and PONG is legal before `AUTH_OK`. A cursor that is
   refused (300 to 302) leaves the connection open for another AUTH, {limits.AUTH_ATTEMPTS_MAX} in all.
2. Pull (`after_seq`, `sync_to_seq`] with `PULL_MAILBOX`, up to {limits.PULL_WINDOW} unanswered. Store the
   `cursor` of a batch only after its entries, and those of the batches before it, are stored.
3. `SYNC_COMPLETE` with the `sync_to_seq` of AUTH_OK, then `ONLINE_READY`: from here on `PUSH_EVENTS` come.
   Everything up to `sync_to_seq` comes by pull, everything above by push.
4. Push never moves the cursor. Now and then, and whenever an event is missing or `LIVE_LOST` comes, pull
   from the last covered seq to `lane_watermark`; events that were pushed come again, with the same
   `event_id`. An empty range (`after_seq` = `up_to_seq`) is legal and tells the present `lane_watermark`.
   What a device sent itself is usually not pushed to it, SEND_ACK has told it; pulls bring it, as all else.
5. Sends and group changes are legal from AUTH_OK on. Repeat an unanswered SEND_MESSAGE with the same
   `client_message_id`, also on another connection: a committed message answers the same.
6. History is read from AUTH_OK on, page by page, in either direction: the next page's anchor is
   `next_anchor`. Nothing is missing between two pages and within one; what is not there is in its breaks.
   What a page shows does not count as received: it moves no cursor.
7. The session list is pulled page by page (`next_cursor`); rows are absolute and may come twice, the later
   one stands. What comes after `projection_mailbox_seq` of the *first* page comes as an event, so pull or
   push from there on. `SESSION_DELTA` tells what another device did, and which groups took the user in
   or let him go (`active`), have another name or have ended: apply it only if (projection_mailbox_seq,
   version) is greater than that of the last one applied, else drop it whole; in a row, a lower `version` than
   the one known is old.

8. Rooms are a stream of their own (3), from AUTH_OK on, without cursors: `JOIN_ROOM` on every new connection,
   with the last (epoch, room_seq) that the device has. Messages come in `ROOM_BATCH`, events at once in
   `ROOM_EVENT`. Within an epoch a missing room_seq is a message that is lost to this device; another epoch
   (event `owner`) says that another process writes the room, and that what was acknowledged in that moment
   may be missing. Nothing of a room is in mailbox, session list or notifications.

An empty cursor means "from now": SYNC_COMPLETE may follow AUTH_OK at once. A device that wants what the
mailbox still holds pulls from `trim_watermark` first; batches that start there carry cursors too.
"""


def document() -> str:
    """The text of the document."""
    parts = [
        _INTRO,
        "## Frames of the client\n",
        *_frames(CLIENT_FRAMES, CLIENT_EXAMPLES),
        "## Frames of the server\n",
        *_frames(SERVER_FRAMES, SERVER_EXAMPLES),
        "## Structures\n",
        *(_structure(cls) for cls in _STRUCTURES),
        _errors(),
    ]
    return "\n".join(parts)


def _frames(table: Mapping[str, Schema], examples: Mapping[str, Frame]) -> Iterable[str]:
    for name, schema in table.items():
        example = examples[name]
        text = JSON.encode(example).decode()
        raw = MSGPACK.encode(example).hex()
        yield (
            f"### {name}\n\n{_text(schema)}\n\n{_fields(schema)}\n"
            f"```json\n{text}\n```\n\n```text\n{_wrapped(raw)}\n```\n"
        )


def _structure(cls: type[Any]) -> str:
    schema = Schema(cls)
    return f"### {cls.__name__}\n\n{_text(schema)}\n\n{_fields(schema)}"


def _fields(schema: Schema) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in schema.fields:
        default = "" if field.required else _shown(field.default)
        rows.append(f"| `{field.name}` | {field.kind.describe()} | {default} | {field.meaning} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)


def _text(schema: Schema) -> str:
    return " ".join((schema.cls.__doc__ or "").split())


def _wrapped(digits: str, width: int = 96) -> str:
    return "\n".join(digits[at : at + width] for at in range(0, len(digits), width))


def _errors() -> str:
    rows = [
        "## Errors\n",
        f"An error that closes is the last frame; the WebSocket close code is {WS_CLOSE_BASE} plus its code. "
        "A temporary error may be repeated after `retry_after_ms`, with jitter; a terminal one will be "
        "answered the same way until something changes. Treat an unknown code by its `temporary`.\n",
        "| code | name | kind | closes | retry after ms | meaning | what to do |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in TABLE:
        kind = "temporary" if row.temporary else "terminal"
        delay = "" if row.retry_after_ms is None else str(row.retry_after_ms)
        closes = "yes" if row.closes else ""
        rows.append(
            f"| {row.code} | {row.name} | {kind} | {closes} | {delay} | {row.meaning} | {row.remedy} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
