"""Room: one room in the memory of the process that owns its partition.

Spec: §10.
"""

import asyncio

from qim_streams.rooms.commands import RoomReceipt
from qim_streams.rooms.rules import EVENTS_PER_S, RoomHead, Standing, TokenBucket
from qim_streams.rooms.window import Window


class Room:
    """`head` is None until the store was asked; `seq` is the last room_seq that was given, `logged`
    the last one that the log has acknowledged."""

    __slots__ = (
        "busy",
        "events",
        "head",
        "logged",
        "messages",
        "name",
        "sending",
        "seq",
        "standings",
        "turn",
        "window",
    )

    def __init__(self, name: tuple[str, str], msg_per_s: float) -> None:
        self.name = name
        self.head: RoomHead | None = None
        self.standings: dict[str, Standing] = {}
        self.seq = self.logged = 0
        self.window = Window()
        self.messages = TokenBucket(msg_per_s)
        self.events = TokenBucket(EVENTS_PER_S)
        self.turn = asyncio.Lock()  # one action at a time
        self.busy = 0  # records on their way to the log
        self.sending: dict[tuple[str, str], asyncio.Future[RoomReceipt]] = {}
