"""RoomWriter: admits sends, joins and actions of the rooms whose partitions this process owns.

A send: permission, rate of the room, number, log, answer. A send that is repeated (same sender and
client_message_id) gets the same receipt for as long as the window of the room knows it. An action: rights,
store, log, answer; repeating it does no harm.

Invariants: nothing is answered before the log has it; work does not grow with the number of viewers; at most
`waiting_max` requests are without an answer.

Spec: §10.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qim_streams import failpoints
from qim_streams.errors import AdmissionRefused, FencedError, RecordError, StoreError
from qim_streams.ownership.ports import Grant
from qim_streams.rooms import metrics, rules
from qim_streams.rooms.commands import (
    NOT_OWNER,
    Request,
    RoomAct,
    RoomCreate,
    RoomJoin,
    RoomReceipt,
    RoomSend,
    RoomView,
    done,
    refused,
)
from qim_streams.rooms.partition import PartitionServices, RoomPartition
from qim_streams.rooms.ports import StoredRoom
from qim_streams.rooms.records import RoomKind, RoomRecord
from qim_streams.rooms.room import Room
from qim_streams.rooms.rules import ACTIONS, RoomHead, Standing

log = logging.getLogger(__name__)

WAITING_MAX: Final = 20_000


class RoomWriter:
    """`partition_of(tenant, room)`; `on_fenced(partition, epoch)`: somebody else owns it."""

    def __init__(
        self,
        services: PartitionServices,
        partition_of: Callable[[str, str], int],
        body_bytes_max: int,
        on_fenced: Callable[[int, int], object] = lambda *_: None,
    ) -> None:
        self._all, self._partition_of, self._body_bytes_max = services, partition_of, body_bytes_max
        self._on_fenced = on_fenced
        self._partitions: dict[int, RoomPartition] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting = 0

    # -- ownership

    def grant(self, grant: Grant) -> RoomPartition:
        """Take a partition over. Returns at once; `ready` of the result is set when it is served."""
        number = number_of(grant.resource)
        self.revoke(number)
        partition = RoomPartition(number, grant.epoch, self._all, self._fenced)
        self._partitions[number] = partition
        self._tasks[number] = asyncio.create_task(partition.run(), name=f"rooms-{number}")
        metrics.PARTITIONS.set(len(self._partitions))
        return partition

    def revoke(self, number: int) -> None:
        """The lease is lost: serve nothing of the partition any more."""
        partition, task = self._partitions.pop(number, None), self._tasks.pop(number, None)
        if partition is not None:
            partition.close()
        if task is not None:
            task.cancel()
        metrics.PARTITIONS.set(len(self._partitions))

    async def release(self, number: int) -> None:
        """Give a partition up in good order, before its lease is released."""
        partition = self._partitions.get(number)
        if partition is not None:
            await partition.stop()
        self.revoke(number)

    @property
    def ready(self) -> list[int]:
        """Partitions that are served now."""
        return sorted(number for number, one in self._partitions.items() if one.ready.is_set())

    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs: a task that ends with an error is a defect."""
        return list(self._tasks.values())

    def _fenced(self, number: int, epoch: int) -> None:
        partition = self._partitions.get(number)
        if partition is not None and partition.epoch == epoch:  # else it is ours again, under a newer one
            del self._partitions[number]
            self._tasks.pop(number, None)
        self._on_fenced(number, epoch)

    # -- requests

    async def execute(self, request: Request) -> tuple[object, ...]:
        """The fields of the answer to a request; never raises what a caller may cause."""
        partition = self._partitions.get(self._partition_of(request.tenant_id, request.room_id))
        if partition is None or not partition.ready.is_set():
            return NOT_OWNER
        if self._waiting >= WAITING_MAX:
            return refused(AdmissionRefused("OVERLOADED", "too many requests wait", retry_after_ms=500))
        self._waiting += 1
        try:
            return done(await self._answer(partition, request))
        except FencedError:
            return NOT_OWNER
        except AdmissionRefused as error:
            metrics.REFUSED.labels(error.code).inc()
            return refused(error)
        except RecordError as error:
            log.error("room request: damaged rows: %s", error)
            return refused(AdmissionRefused("INTERNAL", "stored rows are damaged"))
        except StoreError as error:
            log.warning("room request not done: %s", error)
            return refused(_unknown(request))
        finally:
            self._waiting -= 1
            metrics.ROOMS.set(sum(one.rooms_kept for one in self._partitions.values()))

    async def _answer(self, partition: RoomPartition, request: Request) -> RoomReceipt | RoomView:
        if isinstance(request, RoomCreate):
            return await self._create(partition, request)
        room = await partition.room((request.tenant_id, request.room_id))
        if room is None or room.head is None:
            raise AdmissionRefused("NO_ROOM", "there is no such room")
        match request:
            case RoomSend():
                return await self._send(partition, room, room.head, request)
            case RoomJoin():
                return self._join(partition, room, room.head, request)
            case RoomAct():
                return await self._act(partition, room, request)

    async def _send(
        self, partition: RoomPartition, room: Room, head: RoomHead, request: RoomSend
    ) -> RoomReceipt:
        began_s = self._all.monotonic()
        name = (request.sender_id, request.client_message_id)
        known = room.window.sent(*name)
        if known is not None:
            return known
        under_way = room.sending.get(name)
        if under_way is not None:
            return await asyncio.shield(under_way)
        if len(request.body) > self._body_bytes_max:
            detail = f"{len(request.body)} bytes, the limit is {self._body_bytes_max}"
            raise AdmissionRefused("BODY_TOO_LARGE", detail)
        standing = rules.standing_of(head, room.standings, request.sender_id)
        rules.check_send(head, standing, self._all.now_ms())
        wait_ms = room.messages.wait_ms(began_s)
        if wait_ms:
            detail = f"{room.messages.per_s:g} messages a second in this room"
            raise AdmissionRefused("RATE_LIMITED", detail, retry_after_ms=wait_ms)
        sending = asyncio.ensure_future(self._commit(partition, room, request))
        room.sending[name] = sending
        try:
            receipt = await sending
        finally:
            del room.sending[name]
        metrics.MESSAGES.inc()
        metrics.ACK_SECONDS.observe(self._all.monotonic() - began_s)
        return receipt

    async def _commit(self, partition: RoomPartition, room: Room, request: RoomSend) -> RoomReceipt:
        message_id = await self._all.new_id()
        # From the number to the hand-over to the log nothing waits: the log has them in order.
        room.seq += 1
        record = RoomRecord(
            *room.name,
            partition.epoch,
            room.seq,
            RoomKind.MESSAGE,
            message_id,
            request.sender_id,
            request.client_message_id,
            self._all.now_ms(),
            request.body,
        )
        failpoints.hit("rooms.seq_assigned")
        await partition.append(room, record)
        return RoomReceipt(message_id, record.room_seq, record.epoch, record.at_ms)

    def _join(self, partition: RoomPartition, room: Room, head: RoomHead, request: RoomJoin) -> RoomView:
        if request.user_id is not None:
            standing = rules.standing_of(head, room.standings, request.user_id)
            rules.check_join(head, standing, self._all.now_ms())
        return self._view(partition, room, head, request.user_id, request.limit)

    async def _create(self, partition: RoomPartition, request: RoomCreate) -> RoomView:
        rules.check_name(request.name)
        name = (request.tenant_id, request.room_id)
        head = RoomHead(request.name, request.join_policy, request.owner_id, self._all.now_ms())
        if await self._all.store.create(partition.number, partition.epoch, *name, head):
            room: Room | None = partition.put(name, StoredRoom(head, 0, {}))
        else:
            room = await partition.room(name)
        if room is None or room.head is None:
            raise StoreError("the room came and went")
        if room.head._replace(created_at=0) != head._replace(created_at=0):
            raise AdmissionRefused("ROOM_EXISTS", "a room with this id exists")
        return self._view(partition, room, room.head, request.owner_id or None, 0)

    async def _act(self, partition: RoomPartition, room: Room, request: RoomAct) -> RoomView:
        async with room.turn:
            assert room.head is not None
            now_ms = self._all.now_ms()
            until_ms = now_ms + request.seconds * 1_000 if request.seconds else 0
            change = rules.apply_action(
                room.head, room.standings, request.actor_id, request.action, request.user_id, until_ms
            )
            wait_ms = room.events.wait_ms(self._all.monotonic())
            if wait_ms:
                raise AdmissionRefused(
                    "RATE_LIMITED", "too many actions in this room", retry_after_ms=wait_ms
                )
            standings: dict[str, Standing] = {}
            if change.standing is not None:
                standings[change.user_id] = change.standing
            if standings or change.head != room.head:
                await self._all.store.put(
                    partition.number, partition.epoch, *room.name, change.head, standings
                )
            room.head = change.head
            room.standings |= standings
            record = RoomRecord(
                *room.name,
                partition.epoch,
                0,
                ACTIONS[request.action],
                await self._all.new_id(),
                request.actor_id or "",
                "",
                now_ms,
                request.text,
                change.user_id,
                change.until_ms,
            )
            await partition.append(room, record._replace(room_seq=room.seq))
            metrics.EVENTS.labels(request.action).inc()
            return self._view(partition, room, change.head, request.actor_id, 0)

    def _view(
        self, partition: RoomPartition, room: Room, head: RoomHead, user_id: str | None, limit: int
    ) -> RoomView:
        since_ms = self._all.now_ms() - self._all.retention_ms
        kept = room.window.newest(limit, since_ms)
        standing = rules.standing_of(head, room.standings, user_id or "")
        return RoomView(
            partition.epoch,
            room.logged,  # what is on its way to the log comes as a broadcast
            head.name,
            head.join_policy,
            head.owner_id,
            head.created_at,
            head.muted_all,
            head.closed,
            standing.role,
            standing.muted_until,
            tuple(one.data for one in kept),
        )


def _unknown(request: Request) -> AdmissionRefused:
    if isinstance(request, RoomSend):
        return AdmissionRefused("OUTCOME_UNKNOWN", "the message may or may not be sent", retry_after_ms=500)
    return AdmissionRefused("STORE_UNAVAILABLE", "a store is not available now", retry_after_ms=500)


def resource_of(number: int) -> str:
    """The lease resource of a room partition."""
    return f"rm:{number}"


def number_of(resource: str) -> int:
    """The room partition of a lease resource."""
    return int(resource.removeprefix("rm:"))
