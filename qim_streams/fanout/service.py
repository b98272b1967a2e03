"""FanoutCoordinator: from Outbox records to exactly one GroupDispatch per target shard.

Batches of any number of Outbox partitions go through these steps together; each is durable before the next
begins:

1. decode; tell new, repeated, forged and poison records apart; leave out what an old owner appended behind
   a newer one's barrier (`ownership.log_fence`);
2. the shards of each message's membership version, pinned by the commit that allocated its seq;
3. poison to the dead letters;
4. append all dispatches, in Outbox order per partition, and wait for all acknowledgements;
5. `checkpoint`, after several batches: the page in ``conversation_progress``, the Outbox offset up to
   which everything is dispatched, and the fence as of there.

Then these batches may be acknowledged. A crash after any step repeats the batches since the last
checkpoint: the dispatches have the same bytes, and the mailbox stage drops those that it has. `handle` may
be called again after StoreUnavailable. A hole in conversation_seq raises an alarm and stops nothing.

Two workers may believe that they own a partition (a paused one wakes): both append the same dispatches,
each in order from a point that is not after the first one missing, so the first occurrences stay in order.

Spec: §4, §11, §14.1.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from qim_streams import failpoints
from qim_streams.errors import RecordError
from qim_streams.fanout import metrics
from qim_streams.fanout.plan import OutboxMessage, ShardMap, encode_plan, read_outbox
from qim_streams.fanout.progress import ConversationProgress, OutboxPage
from qim_streams.fanout.recent import RecentMessages, Verdict
from qim_streams.fanout.versions import MembershipVersions
from qim_streams.log_ports import LogAppender, LogBatch, Outgoing, Poison, PoisonSink
from qim_streams.ownership.log_fence import BARRIER_KEY, NO_FENCE, barrier_epoch
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.targets import OutboxVersions, spread, version_at
from qim_streams.spans.rules import Stage
from qim_streams.spans.service import MessageSpans

log = logging.getLogger(__name__)

DISPATCHES_MAX = 5_000  # appended in one call
# Where the kill tests cut an append in two: after the first, in the middle, before the last of `n`.
_CUTS: dict[str, Callable[[int], int]] = {
    "fanout.dispatch_appended_first": lambda n: 1,
    "fanout.dispatch_appended_some": lambda n: n // 2,
    "fanout.dispatch_appended_but_one": lambda n: n - 1,
}

Planned = tuple[OutboxMessage, ShardMap, int]  # with the mapping version


class FanoutCoordinator:
    """The fan-out stage of one worker. A partition is in one `handle` or `checkpoint` at a time."""

    def __init__(
        self,
        outbox_topic: str,
        dispatch_topic: str,
        *,
        outbox_partitions: int,
        mailbox_shards: int,
        appender: LogAppender,
        versions: MembershipVersions,
        progress: ConversationProgress,
        poison: PoisonSink,
        now_ms: Callable[[], int],
        mappings: Mappings | None = None,
        spans: MessageSpans | None = None,
    ) -> None:
        self._spans = spans
        self._mapped = OutboxVersions(mappings or Mappings(mailbox_shards))
        self._outbox_topic, self._dispatch_topic = outbox_topic, dispatch_topic
        self._outbox_partitions, self._mailbox_shards = outbox_partitions, mailbox_shards
        self._log, self._versions, self._progress, self._poison = appender, versions, progress, poison
        self._now_ms = now_ms
        self._recent = RecentMessages()
        self._buried: dict[int, int] = {}  # partition -> poison up to this offset was set aside
        self._dispatched: dict[int, int] = {}  # partition -> everything up to this offset is dispatched
        self._fences: dict[int, int] = {}  # partition -> epoch of the last barrier up to there

    async def start_position(self, partition: int) -> int:
        """The next Outbox offset to dispatch."""
        self._buried.pop(partition, None)
        page = self._progress.read(partition)
        self._fences[partition] = page.fence
        await self._mapped.begin(partition, page.mapping_version, page.dispatched_through + 1)
        return page.dispatched_through + 1

    async def handle(self, batches: Sequence[LogBatch]) -> None:
        """Make the dispatches of `batches`, one per partition, durable (see the module text)."""
        failpoints.hit("fanout.outbox_polled")
        began_ns = 0 if self._spans is None else self._spans.now_ns()
        messages: list[OutboxMessage] = []
        poison: list[Poison] = []
        fences = {batch.partition: self._decode(batch, messages, poison) for batch in batches}
        turns = {batch.partition: self._mapped.turns(batch) for batch in batches}
        placement = await self._mapped.placement(turns.values())
        verdicts = self._recent.judge(messages)
        todo = []
        for one, verdict in zip(messages, verdicts, strict=True):
            if verdict is Verdict.FORGED:
                poison.append(self._poisoned(batches, one, "its message_id was used with other content"))
            elif verdict is not Verdict.REPEAT:
                todo.append(one)
        planned: list[Planned] = []
        for one, shards in zip(todo, await self._versions.load(todo), strict=True):
            if shards is None:
                metrics.ALARMS.labels("version_missing").inc()
                poison.append(self._poisoned(batches, one, "its membership version is unknown"))
            else:
                version = version_at(turns[one.partition], one.offset)
                planned.append((one, spread(shards, placement, version), version))
        failpoints.hit("fanout.membership_pinned")
        if poison:
            await self._bury(poison)
        count = await self._append(self._outgoing(planned))
        if self._spans is not None:
            done = [(one.message.tenant_id, one.message.message_id) for one, _, _ in planned]
            self._spans.note(Stage.FANOUT, began_ns, done, batch=len(planned))
        failpoints.hit("fanout.all_appended")
        self._recent.remember([one for one, _, _ in planned])
        for batch in batches:
            self._dispatched[batch.partition] = batch.records[-1].offset
            self._mapped.note(batch.partition, turns[batch.partition])
        self._fences |= fences  # not before: a batch that failed comes again
        turned = [partition for partition, found in turns.items() if len(found) > 1]
        if turned:
            await self.checkpoint(turned)  # a split waits for these pages, and users for the split
        _count(planned, verdicts, poison, count, self._now_ms())

    async def checkpoint(self, partitions: Sequence[int]) -> None:
        """Make durable up to which offsets `partitions` are dispatched."""
        now_ms = self._now_ms()
        for partition in partitions:
            fence, version = self._fences[partition], self._mapped.of(partition)
            self._progress.write(partition, OutboxPage(self._dispatched[partition], now_ms, fence, version))
        for partition in partitions:
            await self._progress.barrier(partition)
        failpoints.hit("fanout.page_durable")

    def _decode(self, batch: LogBatch, messages: list[OutboxMessage], poison: list[Poison]) -> int:
        """Add what is in a batch to `messages` and `poison`; the fence behind it."""
        partition, partitions, shards = batch.partition, self._outbox_partitions, self._mailbox_shards
        fence, late = self._fences.get(partition, NO_FENCE), 0
        for record in batch.records:
            try:
                if record.key == BARRIER_KEY:
                    fence = max(fence, barrier_epoch(record.key, record.value) or NO_FENCE)
                    continue
                one = read_outbox(record, partition, partitions, shards)
                if one.outbox.fencing_epoch < fence:
                    late += 1
                else:
                    messages.append(one)
            except RecordError as error:
                poison.append(Poison(self._outbox_topic, partition, record, str(error)))
        if late:
            metrics.RECORDS.labels("fenced").inc(late)
            log.warning("outbox[%d]: %d records of an old owner behind epoch %d", partition, late, fence)
        return fence

    def _poisoned(self, batches: Sequence[LogBatch], one: OutboxMessage, cause: str) -> Poison:
        batch = next(batch for batch in batches if batch.partition == one.partition)
        record = next(record for record in batch.records if record.offset == one.offset)
        return Poison(self._outbox_topic, one.partition, record, cause)

    async def _bury(self, poison: Sequence[Poison]) -> None:
        """Set poison aside, once per offset unless the process dies in between."""
        buried = self._buried
        found = sorted(
            (one for one in poison if one.record.offset > buried.get(one.partition, -1)),
            key=lambda one: (one.partition, one.record.offset),
        )
        if not found:
            return
        for one in found[:5]:
            log.error("outbox[%d]: poison at offset %d: %s", one.partition, one.record.offset, one.cause)
        await self._poison.send(found)
        for one in found:
            buried[one.partition] = one.record.offset

    async def _append(self, outgoing: Iterator[list[Outgoing]]) -> int:
        """Append all dispatches in order, acknowledged; how many there were."""
        count = 0
        for part in outgoing:
            for point in filter(failpoints.armed, _CUTS if len(part) > 1 else ()):
                cut = _CUTS[point](len(part))
                await self._log.append(part[:cut])
                failpoints.hit(point)
                part, count = part[cut:], count + cut
                break
            await self._log.append(part)
            count += len(part)
        return count

    def _outgoing(self, planned: Iterable[Planned]) -> Iterator[list[Outgoing]]:
        """All dispatches in order, in parts of at most `DISPATCHES_MAX`."""
        topic = self._dispatch_topic
        part: list[Outgoing] = []
        for one, shards, version in planned:
            key = one.key
            part += [Outgoing(topic, shard, key, data) for shard, data in encode_plan(one, shards, version)]
            while len(part) >= DISPATCHES_MAX:
                yield part[:DISPATCHES_MAX]
                part = part[DISPATCHES_MAX:]
        if part:
            yield part


def _count(
    planned: Sequence[Planned],
    verdicts: Sequence[Verdict],
    poison: Sequence[Poison],
    dispatches: int,
    now_ms: int,
) -> None:
    for verdict in Verdict:
        count = verdicts.count(verdict)
        if count:
            metrics.RECORDS.labels(verdict.value).inc(count)
            if verdict is Verdict.FORGED:
                metrics.ALARMS.labels("forged_repeat").inc(count)
            elif verdict is Verdict.AFTER_HOLE:
                metrics.ALARMS.labels("seq_hole").inc(count)
    if poison:
        metrics.RECORDS.labels("poison").inc(len(poison))
    metrics.DISPATCHES.inc(dispatches)
    if planned:
        oldest = min([one.message.committed_at for one, _, _ in planned])
        metrics.DISPATCHED.observe(max(0.0, (now_ms - oldest) / 1000))
