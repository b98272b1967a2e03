"""HotTierTrimmer: removes from the hot tier what the archive holds, and nothing else.

Two reasons to trim a conversation: it has more archived messages in the hot tier than `messages_kept`, or
it has been silent for `kept_ms`, and then all of them go. The archiver says what it archived (`note`); the
work is done beside it, so neither a slow Redis nor a slow read of the archive holds up archiving.

How a message goes: it is read from the archive, up to the newest seq of its conversation that the published
watermark covers (the hot tier remembers it: `archived_seq`), and removed if the hot tier holds the very
same bytes and the message is confirmed, compare and remove in one step. So:

* nothing above the archive watermark goes, and nothing at all while the archive cannot be read;
* readers find a message in the hot tier, else in the archive: it is in one of them at any moment;
* a message that was edited after its archiving stays until its new state is archived too;
* an archiver that lost its partition and goes on for a moment does no harm: no lease is needed.

A message that is archived late, after the trimming has passed its seq, is trimmed by its own note. What is
noted and not worked off is lost with the process; the next message of the conversation, or its silence,
makes up for it.

What it does not do: trim mailboxes, members or anything else but messages.

Spec: §3, §14.8.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from qim_streams.archive import metrics
from qim_streams.archive.ports import (
    ArchivedCopy,
    ArchivedMessage,
    ArchiveReader,
    Covered,
    Dropped,
    HotRecords,
)
from qim_streams.errors import QimError, RecordError
from qim_streams.records import decode_message

log = logging.getLogger(__name__)

SLAB: Final = 64  # trim when so many have come together: one read and one removal for all of them
PAGE: Final = 200
PAGE_BYTES_MAX: Final = 1024 * 1024  # hashed in one call of the store: about 2 ms
PAGES_MAX: Final = 50  # of one conversation in one round; the rest waits for its next note
NOTES_MAX: Final = 20_000  # conversations waiting; more are not noted
LATE_MAX: Final = 1_000  # seqs kept of one conversation between two rounds
SILENT_MAX: Final = 500  # conversations in one sweep of a partition
SWEEPS_MAX: Final = 10  # of one partition in a row
SWEEP_S: Final = 30.0
ROUND_S: Final = 10.0  # notes of so long are worked off together: one call per conversation, not per message
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0

Conversation = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TrimPolicy:
    """What stays hot: the newest `messages_kept` of a conversation, unless it was silent for `kept_ms`."""

    messages_kept: int
    kept_ms: int


@dataclass(slots=True)
class _Note:
    """What was archived of a conversation since the last round."""

    newest: int = 0
    seqs: list[int] = field(default_factory=list)  # in the order in which they came


class HotTierTrimmer:
    """Trims behind one archiver. It says what comes and goes; `start` and `close` frame the work."""

    def __init__(
        self,
        archive: ArchiveReader,
        hot: HotRecords,
        policy: TrimPolicy,
        *,
        now_ms: Callable[[], int],
        die: Callable[[str], object],
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`die` is told when the work ends by an error that is none of a store. `uniform`: jitter, 0 to 1."""
        self._archive, self._hot, self._policy = archive, hot, policy
        self._now_ms, self._die, self._uniform = now_ms, die, uniform
        self._partitions: set[int] = set()
        self._notes: dict[int, dict[Conversation, _Note]] = {}
        self._waiting = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Trim until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="hot-tier-trimmer")

    async def close(self) -> None:
        """Stop; a step that is under way stands or does not, and either is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def adopt(self, partition: int) -> None:
        """A partition came: its silent conversations are looked after."""
        self._partitions.add(partition)

    def release(self, partitions: Iterable[int]) -> None:
        """Partitions went: what was noted of them is another archiver's business."""
        for partition in partitions:
            self._partitions.discard(partition)
            self._waiting -= len(self._notes.pop(partition, {}))

    def note(self, partition: int, messages: Iterable[ArchivedMessage]) -> None:
        """`messages` are in the archive and covered by the published watermark."""
        notes = self._notes.setdefault(partition, {})
        for one in messages:
            key = (one.tenant_id, one.conversation_id)
            note = notes.get(key)
            if note is None:
                if self._waiting >= NOTES_MAX:
                    metrics.TRIM_UNNOTED.inc()
                    continue
                note = notes[key] = _Note()
                self._waiting += 1
            seq = one.conversation_seq
            if seq > note.newest:
                note.newest = seq
            if len(note.seqs) < LATE_MAX:
                note.seqs.append(seq)
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        swept_s, failures = loop.time(), 0
        try:
            while True:
                await self._wait(swept_s + SWEEP_S)
                try:
                    await self.work()
                    if loop.time() >= swept_s + SWEEP_S:
                        await self.sweep()
                        swept_s = loop.time()
                    failures = 0
                except QimError as error:
                    # Whatever a store refuses is tried again later: archiving goes on meanwhile.
                    await self._pause(error, failures)
                    failures += 1
        except Exception as error:  # noqa: BLE001 - a hot tier that nobody trims fills unseen
            self._die(f"trimming the hot tier failed: {type(error).__name__}: {error}")

    async def _wait(self, until_s: float) -> None:
        """Until something was noted, and a little longer for what comes with it; at most until `until_s`."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._wake.wait()
                await asyncio.sleep(ROUND_S)
        except TimeoutError:
            pass  # time to sweep
        self._wake.clear()

    async def _pause(self, error: QimError, failures: int) -> None:
        metrics.TRIM_FAILURES.inc()
        if failures == 0:
            log.warning("the hot tier is not trimmed for the moment: %s: %s", type(error).__name__, error)
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(failures, 10))
        await asyncio.sleep(pause_s * (0.5 + self._uniform() / 2))

    async def work(self) -> int:
        """Trim what was noted so far; messages removed. StoreError: what is left stays noted."""
        removed = 0
        for partition in list(self._notes):
            notes = self._notes.pop(partition, {})
            self._waiting -= len(notes)
            try:
                removed += await self._work_off(partition, notes)
            except BaseException:
                self._put_back(partition, notes)
                raise
        return removed

    async def sweep(self) -> int:
        """Trim every conversation that has been silent for `kept_ms`; messages removed."""
        before_ms = self._now_ms() - self._policy.kept_ms
        removed = 0
        for partition in sorted(self._partitions):
            for _ in range(SWEEPS_MAX):
                count, more = await self._sweep_some(partition, before_ms)
                removed += count
                if not more:
                    break
        return removed

    async def _sweep_some(self, partition: int, before_ms: int) -> tuple[int, bool]:
        """Trim what has been silent for longest: how many messages went, whether there is more."""
        silent = await self._hot.silent(partition, before_ms, SILENT_MAX)
        removed, done, stuck = 0, list[Conversation](), list[Covered]()
        for one in silent:
            key = (one.tenant_id, one.conversation_id)
            count, complete = await self._trim(partition, key, max(one.hot_from, 1), one.covered_seq + 1)
            removed += count
            if complete:
                done.append(key)
            else:
                stuck.append(Covered(*key, 0))
        await self._hot.forget(partition, done, before_ms)
        await self._hot.note(partition, stuck, self._now_ms())  # looked at again later, not first of all
        return removed, len(silent) == SILENT_MAX

    def _put_back(self, partition: int, notes: dict[Conversation, _Note]) -> None:
        if partition not in self._partitions:
            return  # it was released meanwhile
        current = self._notes.setdefault(partition, {})
        for key, note in notes.items():
            newer = current.get(key)
            if newer is None:
                current[key] = note
                self._waiting += 1
            else:
                newer.newest = max(newer.newest, note.newest)
                newer.seqs += note.seqs
        self._wake.set()

    async def _work_off(self, partition: int, notes: dict[Conversation, _Note]) -> int:
        removed = 0
        asked = [Covered(*key, note.newest) for key, note in notes.items()]
        known = await self._hot.note(partition, asked, self._now_ms())
        for (tenant, chat, _), hot_from in zip(asked, known, strict=True):
            key = (tenant, chat)
            note = notes[key]
            if hot_from:
                removed += await self._trim_late(partition, key, [one for one in note.seqs if one < hot_from])
                keep_from = note.newest - self._policy.messages_kept + 1
                if keep_from - hot_from >= min(SLAB, self._policy.messages_kept + 1):
                    count, _ = await self._trim(partition, key, hot_from, keep_from)
                    removed += count
            del notes[key]
        return removed

    async def _trim(
        self, partition: int, key: Conversation, hot_from: int, keep_from: int
    ) -> tuple[int, bool]:
        """Trim from `hot_from` (inclusive) to `keep_from` (exclusive): how many went, whether all."""
        removed = 0
        for _ in range(PAGES_MAX):
            if hot_from >= keep_from:
                break
            found = await self._archive.range(*key, hot_from - 1, keep_from - 1, PAGE)
            page = _bounded(found)
            is_last = len(page) == len(found) < PAGE
            hot_from = keep_from if is_last else page[-1].conversation_seq + 1
            dropped = await self._drop(partition, key, page, hot_from)
            removed += dropped.removed
            if dropped.stopped_at is not None:
                return removed, False
        else:
            return removed, False
        return removed, True

    async def _trim_late(self, partition: int, key: Conversation, seqs: Sequence[int]) -> int:
        """Trim single messages that were archived after the trimming had passed them."""
        if not seqs:
            return 0
        ordered = sorted(set(seqs))
        stored = await self._archive.records([(*key, seq) for seq in ordered])
        late = [
            ArchivedMessage(*key, seq, record)
            for seq, record in zip(ordered, stored, strict=True)
            if record is not None
        ]
        removed = 0
        while late:
            page = _bounded(late[:PAGE])
            removed += (await self._drop(partition, key, page, 0)).removed
            late = late[len(page) :]
        return removed

    async def _drop(
        self, partition: int, key: Conversation, page: Sequence[ArchivedMessage], hot_from: int
    ) -> Dropped:
        dropped = await self._hot.drop(partition, key, _copies(page), hot_from)
        metrics.TRIMMED.inc(dropped.removed)
        metrics.TRIM_DIFFERING.inc(dropped.differing)
        return dropped


def _bounded(page: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
    """The first messages of a page, as many as one call may hash; at least one."""
    taken: list[ArchivedMessage] = []
    nbytes = 0
    for one in page:
        nbytes += len(one.record)
        if taken and nbytes > PAGE_BYTES_MAX:
            break
        taken.append(one)
    return taken


def _copies(page: Iterable[ArchivedMessage]) -> list[ArchivedCopy]:
    copies = []
    for one in page:
        try:
            message_id = decode_message(one.record).message_id
        except RecordError as error:
            # The archiver took it once, so it is damage of the archive: the hot copy is the one to keep.
            log.error(
                "message %d of %s/%s in the archive cannot be read: %s",
                one.conversation_seq, one.tenant_id, one.conversation_id, error,
            )  # fmt: skip
            continue
        copies.append(ArchivedCopy(one.conversation_seq, message_id, one.record))
    return copies
