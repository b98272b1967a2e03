"""PushStage: presence, push batches, and the promise that makes the login barrier work.

The promise (PresenceReady{from_seq}): every entry of the user above from_seq will be pushed to this
connection. It holds because looking up the recipients of a record and raising `pushed_through` happen
without a wait in between, and from_seq is `pushed_through` at the moment when the device is in the cache.
While the lanes of a shard stand apart, both are those of the user's lane.
It is given again to whoever asks again, and after a restart to every live device, from the position where
pushing resumes.

Push is best effort: a message whose body the hot tier lost is not pushed (counted), a device over the
bound is not pushed to. Nothing here moves a cursor or W.

Spec: §6, §7.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from qim_streams.errors import InvariantViolation, StoreUnavailable
from qim_streams.log_ports import LogAppender, LogRecord, Outgoing
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.watermark import Marks
from qim_streams.ownership.ports import LeaseStore
from qim_streams.push import metrics
from qim_streams.push.batches import RECIPIENTS_MAX, Audiences, build_batches, find_audiences, ready_batches
from qim_streams.push.bodies import CommonBodies
from qim_streams.push.offline import OfflineTasks
from qim_streams.push.ports import Follower
from qim_streams.push.presence import Device, DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import PushBatch
from qim_streams.spans.rules import Place, Stage
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

LIVENESS_S = 1.0  # how often the leases of ConnectionShards are looked at

Die = Callable[[str], NoReturn]


class PushStage:
    """`Pusher` over the presence log and the push log."""

    def __init__(
        self,
        topic: str,
        *,
        connection_shards: int,
        log_appender: LogAppender,
        bodies: CommonBodies,
        leases: LeaseStore,
        follower: Follower,
        die: Die,
        offline: OfflineTasks | None = None,
        spans: MessageSpans | None = None,
    ) -> None:
        self._spans = spans
        self._topic, self._connection_shards = topic, connection_shards
        self._log, self._bodies, self._leases, self._die = log_appender, bodies, leases, die
        self._follower, self._offline = follower, offline
        follower.start(self.on_presence)
        self._epochs, self._budget = EpochTable(), DeviceBudget()
        self._online: dict[int, OnlineDevices] = {}
        self._ready: dict[int, Shard] = {}  # shards whose devices have been told
        self._unready: dict[int, Shard] = {}  # shards whose devices will be told once W caught up
        self._task: asyncio.Task[None] | None = None

    # -- shards come and go

    async def attach(self, shard: Shard) -> None:
        """See `Pusher.attach`."""
        await self.detach(frozenset({shard.shard}))
        self._online[shard.shard] = OnlineDevices(self._epochs, self._budget)
        await self._follower.follow(shard.shard)
        if self._offline is not None:
            await self._offline.attach(shard.shard)
        await self._look_at_leases()
        self._watch()
        self._unready[shard.shard] = shard
        await self._tell_waiting(shard)

    async def detach(self, shards: frozenset[int]) -> None:
        """See `Pusher.detach`."""
        self._follower.unfollow(shards)
        if self._offline is not None:
            self._offline.detach(shards)
        for shard in shards:
            self._ready.pop(shard, None)
            self._unready.pop(shard, None)
            online = self._online.pop(shard, None)
            if online is not None:
                online.close()

    async def close(self) -> None:
        """Stop following and watching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._follower.close()
        if self._offline is not None:
            await self._offline.close()
        await self.detach(frozenset(self._online))

    def online(self) -> Mapping[int, OnlineDevices]:
        """The devices of each shard that is served here, for people."""
        return self._online

    # -- push

    async def push(self, work: Sequence[tuple[Shard, Sequence[Addressed]]]) -> None:
        """See `Pusher.push`. On an error `pushed_through` is where the failed part began."""
        if self._offline is not None:
            await self._offline.offer(work, self._online)
        found: list[tuple[Shard, Audiences]] = []
        before: dict[int, tuple[Shard, int]] = {}
        size = 0
        for shard, records in work:
            online = self._online.get(shard.shard)
            if online is None or not len(online):
                if records:
                    shard.pushed_through = max(shard.pushed_through, records[-1].offset)
                continue
            through = shard.pushed_through
            todo = [one for one in records if one.offset > through]
            for last, audiences in find_audiences(todo, online):
                before.setdefault(shard.shard, (shard, shard.pushed_through))
                shard.pushed_through = last
                found.append((shard, audiences))
                size += sum([len(one.recipients) for part in audiences.values() for one in part])
                if size >= RECIPIENTS_MAX:
                    await self._push(found, before)
                    found, before, size = [], {}, 0
        await self._push(found, before)
        for shard, _ in work:
            await self._tell_waiting(shard)

    async def push_lanes(self, shard: Shard, records: Sequence[Addressed], through: Marks) -> None:
        """See `Pusher.push_lanes`."""
        lanes, online = shard.open, self._online.get(shard.shard)
        if lanes is None:
            raise InvariantViolation(f"shard {shard.shard}: its lanes stand together")
        if self._offline is not None:
            await self._offline.offer([(shard, records)], self._online, lanes_apart=True)
        found: list[tuple[Shard, Audiences]] = []
        if online is not None and len(online):
            found = [(shard, part) for _, part in find_audiences(records, online)]
        # Who comes from here on reads all of it from the mailbox; if pushing fails, he reads it there only.
        lanes.pushed = rule.merged(lanes.pushed, through)
        await self._push(found, {})
        await self._tell_waiting(shard)

    async def _push(
        self, found: Sequence[tuple[Shard, Audiences]], before: Mapping[int, tuple[Shard, int]]
    ) -> None:
        """Push to audiences of any number of shards with one read of bodies and one append."""
        dispatches = [one.dispatch for _, parts in found for part in parts.values() for one in part]
        if not dispatches:
            return
        began_ns = 0 if self._spans is None else self._spans.now_ns()
        try:
            bodies = await self._bodies.load(dispatches)
            await self._append(
                batch
                for shard, audiences in found
                for batch in build_batches(shard.shard, shard.epoch, audiences, bodies)
            )
        except BaseException:
            for shard, through in before.values():
                shard.pushed_through = through
            raise
        if self._spans is not None:
            for shard, parts in found:
                told = (one.dispatch for part in parts.values() for one in part)
                pushed = ((one.tenant_id, one.message_id) for one in told if one.message_id in bodies)
                self._spans.note(Stage.PUSH, began_ns, pushed, Place(shard.shard))

    async def _append(self, batches: Iterable[tuple[int, PushBatch]]) -> None:
        outgoing = []
        items = recipients = ready = 0
        for target, batch in batches:
            if target >= self._connection_shards:
                continue  # written under another configuration: nobody reads that partition
            outgoing.append(Outgoing(self._topic, target, None, batch.encode()))
            items += len(batch.items)
            recipients += sum([len(item.recipients) for item in batch.items])
            ready += len(batch.ready)
        if outgoing:
            await self._log.append(outgoing)
            metrics.BATCHES.inc(len(outgoing))
            metrics.ITEMS.inc(items)
            metrics.RECIPIENTS.inc(recipients)
            metrics.READY.inc(ready)

    # -- presence

    async def on_presence(self, partition: int, records: Sequence[LogRecord]) -> None:
        """Apply presence records of a followed shard; answer those of live devices."""
        online = self._online.get(partition)
        if online is None:
            return
        arrived = [device for one in records if (device := online.apply(one.key, one.value)) is not None]
        shard = self._ready.get(partition)
        if shard is not None and arrived:
            await self._tell(shard, arrived)

    async def _tell(self, shard: Shard, devices: Iterable[Device]) -> None:
        await self._append(ready_batches(shard.shard, shard.epoch, devices, shard.told))

    async def _tell_waiting(self, shard: Shard) -> None:
        """Give the promise to all devices of a shard whose readers see all that they were promised."""
        if shard.shard not in self._unready or not shard.caught_up:
            return
        del self._unready[shard.shard]
        self._ready[shard.shard] = shard
        await self._tell(shard, self._online[shard.shard].live())

    # -- leases of gateways

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="push-liveness")

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(LIVENESS_S)
                failure = self._follower.failure()
                if failure is not None:
                    self._die(f"the presence log is not read any more: {type(failure).__name__}: {failure}")
                failure = None if self._offline is None else self._offline.failure()
                if failure is not None:
                    self._die(f"the device log is not read any more: {type(failure).__name__}: {failure}")
                try:
                    await self._look_at_leases()
                except StoreUnavailable as error:
                    log.warning("leases of gateways are unknown, keeping what was known: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody looks any more
            self._die(f"push: {type(error).__name__}: {error}")

    async def _look_at_leases(self) -> None:
        asked = self._epochs.known()
        if not asked:
            return
        holders = await self._leases.holders([f"cs:{shard}" for shard in asked])
        revived = self._epochs.update(asked, holders)
        for number, online in list(self._online.items()):
            purged = online.purge()
            if purged:
                log.info("shard %d: %d devices of ended gateways dropped", number, purged)
            if revived and number in self._ready:
                await self._tell(self._ready[number], online.live(revived))
