"""Talk in one room over real sockets, and what every member must have been shown of it.

Judged: an acknowledged message is seen by every member or told as lost, nothing is seen twice or out of
order, members hear of a new writer.

Spec: §10.
"""

import asyncio
import contextlib
import secrets
from typing import Any

from qim_streams.client import ClientOptions, QimClient
from qim_streams.client.room_tracker import Lost, NewEpoch, RoomDelivery, Said
from qim_streams.client.rooms import ClientRoom
from qim_streams.errors import AdmissionRefused, ClientStopped
from qim_streams.wire.frames_rooms import RoomAck
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

VIEWERS, RATE = 4, 15.0  # below room_msg_rate
QUICK = ClientOptions(answer_ms=3_000, backoff_base_ms=50, backoff_cap_ms=500, follow_endpoint=False)


class Viewer:
    """A member that notes all it is given."""

    def __init__(self, room: ClientRoom) -> None:
        self.room, self.got = room, list[RoomDelivery]()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(ClientStopped):
            async for one in self.room.events():
                self.got.append(one)

    def of(self, kind: type) -> list[Any]:
        """What came of a kind."""
        return [one for one in self.got if isinstance(one, kind)]

    @property
    def last(self) -> tuple[int, int]:
        """(epoch, room_seq) of the last message."""
        said = self.of(Said)
        return (said[-1].epoch, said[-1].message.room_seq) if said else (0, 0)

    def check(self, acked: list[RoomAck]) -> int:
        """AssertionError unless all is in order and complete; how many acknowledged messages were lost."""
        seen = [(one.epoch, one.message.room_seq) for one in self.of(Said)]
        assert seen == sorted(set(seen)), "out of order, or twice"
        ids = {one.message.message_id for one in self.of(Said)}
        lost = [(one.first_seq, one.last_seq) for one in self.of(Lost)]
        told = {(one.epoch, one.restarted) for one in self.of(NewEpoch)}
        missing = [ack for ack in acked if ack.message_id not in ids]
        epochs = sorted({ack.epoch for ack in acked})
        for ack in missing:
            # Told as a gap, or acknowledged by a writer whose end was told.
            gap = any(first <= ack.room_seq <= last for first, last in lost)
            assert gap or any(epoch > ack.epoch for epoch, _ in told), (ack, lost, told, epochs)
        return len(missing)


class RoomTraffic:
    """One talker and some viewers in a room of their own."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack, self.room_id = stack, f"r.{secrets.token_hex(6)}"
        self.acked: list[RoomAck] = []
        self.failed = 0
        self._clients: list[QimClient] = []
        self.viewers: list[Viewer] = []

    async def __aenter__(self) -> "RoomTraffic":
        try:
            await self._enter()
        except BaseException:
            await self._leave()
            raise
        self._talking = asyncio.create_task(self._talk())
        return self

    async def _enter(self) -> None:
        address = self._stack.address()
        run = secrets.token_hex(4)
        for number in range(VIEWERS):
            client = QimClient(
                address.require_url(), address.token(f"{run}-{number}"), "phone", options=QUICK
            )
            self._clients.append(client)
            await client.connect(60.0)
        await self._clients[0].rooms.create(self.room_id)
        for client in self._clients:
            self.viewers.append(Viewer(await client.rooms.join(self.room_id, timeout_s=60.0)))

    async def _leave(self) -> None:
        for client in self._clients:
            await client.close()

    async def _talk(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                # Answered or known to be open: each attempt repeats under one client_message_id.
                ack = await self.viewers[0].room.send(b"m%d" % number, timeout_s=60.0)
                self.acked.append(ack)
            except (AdmissionRefused, TimeoutError):
                self.failed += 1
            await asyncio.sleep(1.0 / RATE)

    async def more(self, count: int, within_s: float = 120.0) -> None:
        """Until so many further messages are acknowledged, and seen by all or told as lost."""
        goal = len(self.acked) + count
        await eventually(lambda: len(self.acked) >= goal, within_s, f"{count} more acknowledgements")
        at = (self.acked[-1].epoch, self.acked[-1].room_seq)
        await eventually(
            lambda: all(viewer.last >= at for viewer in self.viewers), within_s, f"all viewers at {at}"
        )

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._talking.cancel()
        await asyncio.wait([self._talking])
        try:
            if kind is None:
                at = (self.acked[-1].epoch, self.acked[-1].room_seq)
                await eventually(lambda: all(one.last >= at for one in self.viewers), 120, "the end")
        finally:
            await self._leave()

    def check(self, figures: dict[str, Any]) -> None:
        """The verdict over all viewers."""
        numbers = [(ack.epoch, ack.room_seq) for ack in self.acked]
        assert len(set(numbers)) == len(numbers), "a number was given twice"
        lost = [viewer.check(self.acked) for viewer in self.viewers]
        figures |= {
            "acknowledged": len(self.acked),
            "failed sends": self.failed,
            "acknowledged and lost, per viewer": lost,
            "epochs": len({ack.epoch for ack in self.acked}),
            "numbers went on": self.acked[-1].room_seq >= len(self.acked),
        }
        print(figures)
