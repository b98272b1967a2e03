"""The archive on Cassandra or ScyllaDB. Any number of processes may write and read it.

Invariants:

* `store` returns when every message is on a quorum and the watermark, written after them, is too. Until
  then the watermark that anybody can see covers durable messages only.
* Every write is absolute and carries its own order (`cassandra_schema`): repeating one, or applying an old
  one late, changes nothing. So a time-out, whose outcome is unknown, is settled by writing again; and an
  archiver that was replaced cannot take anything back, without a lease and without a compare-and-set.
* Rows of one partition travel in unlogged batches (one mutation of one replica set, atomic there); rows of
  different partitions never share a batch.

What it does not do: make the schema (`cassandra_admin`), delete anything, or wait for long: what is not
settled within `SETTLE_S` is raised as StoreUnavailable, and the lane repeats the batch until it is.

Spec: §1, §3, §14.8.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from cassandra.query import BatchStatement, BatchType

from qim_streams import failpoints
from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive.cassandra_session import (
    CassandraOptions,
    CassandraSession,
    Rows,
    is_transient,
    translate,
)
from qim_streams.archive.ports import SEQ_MAX, ArchivedMessage, require_limit
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.lru import LruMap
from qim_streams.sessions.ports import ArchivedState

log = logging.getLogger(__name__)

BATCH_ROWS_MAX: Final = 50
BATCH_BYTES_MAX: Final = 256 * 1024
ROUND_STATEMENTS_MAX: Final = 256  # handed to the driver before the event loop turns
SETTLE_S: Final = 5.0  # with one request time-out below the drain time of a rebalance
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
IN_MAX: Final = 100  # seqs in one SELECT ... IN
ROWS_MAX: Final = 250  # of one answer: 16 MB of the largest messages
BUCKETS_PAGE: Final = 64
BUCKETS_KNOWN_MAX: Final = 50_000

Conversation = tuple[str, str]
Address = tuple[str, str, int]


class _Prepared(NamedTuple):
    """Prepared statements, in the order of `_TEXTS`."""

    message: Any
    bucket: Any
    watermark: Any
    get_watermark: Any
    records: Any
    range: Any
    range_back: Any
    buckets: Any
    buckets_back: Any


_TEXTS: Final = (
    schema.INSERT_MESSAGE,
    schema.INSERT_BUCKET,
    schema.INSERT_WATERMARK,
    schema.SELECT_WATERMARK,
    schema.SELECT_RECORDS,
    schema.SELECT_RANGE,
    schema.SELECT_RANGE_BACK,
    schema.SELECT_BUCKETS,
    schema.SELECT_BUCKETS_BACK,
)


class CassandraArchive:
    """`Archive` on a cluster. Connects at the first call; see `open`."""

    def __init__(
        self,
        options: CassandraOptions,
        *,
        settle_s: float = SETTLE_S,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`settle_s`: how long one call repeats unsettled writes. `uniform`: jitter, 0 to 1."""
        self._session = CassandraSession(options)
        self._where = options.where
        self._keyspace = options.keyspace
        self._settle_s, self._uniform = settle_s, uniform
        self._preparing = asyncio.Lock()
        self._prepared: _Prepared | None = None
        self._states: tuple[Any, ...] | None = None
        self._bucket_seqs = 0
        self._indexed: LruMap[tuple[str, str, int], bool] = LruMap(BUCKETS_KNOWN_MAX, BUCKETS_KNOWN_MAX)

    @classmethod
    async def open(cls, options: CassandraOptions) -> Self:
        """An archive whose schema was checked, if the cluster answers; else it is checked at the first call.

        ConfigError for a schema that is missing or of another version, and for a login that is refused.
        """
        archive = cls(options)
        try:
            await archive._statements()
        except StoreUnavailable as error:
            log.warning("the archive is away, and work goes on without it: %s", error)
        except BaseException:
            await archive.close()
            raise
        return archive

    # -- writing

    async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        """Messages on a quorum, then the watermark; see the port."""
        prepared = await self._statements()
        deadline = asyncio.get_running_loop().time() + self._settle_s
        new_buckets = self._new_buckets(messages)
        writes = [prepared.bucket.bind(key) for key in new_buckets]
        writes += self._batches(prepared, messages)
        for start in range(0, len(writes), ROUND_STATEMENTS_MAX):
            await self._settle(writes[start : start + ROUND_STATEMENTS_MAX], deadline)
            failpoints.hit("archiver.batch_partial")
        for key in new_buckets:
            self._indexed.put(key, True, 1)
        failpoints.hit("archiver.batch_durable")
        stamp = schema.watermark_stamp(watermark)
        await self._settle([prepared.watermark.bind((partition, watermark, stamp))], deadline)

    def _new_buckets(self, messages: Sequence[ArchivedMessage]) -> list[tuple[str, str, int]]:
        """Buckets above 0 that this process has not yet entered into the list of buckets."""
        keys = {
            (one.tenant_id, one.conversation_id, one.conversation_seq // self._bucket_seqs)
            for one in messages
            if one.conversation_seq >= self._bucket_seqs
        }
        return [key for key in keys if self._indexed.get(key) is None]

    def _batches(self, prepared: _Prepared, messages: Sequence[ArchivedMessage]) -> Iterator[Any]:
        by_partition: dict[tuple[str, str, int], list[ArchivedMessage]] = {}
        for one in messages:
            key = (one.tenant_id, one.conversation_id, one.conversation_seq // self._bucket_seqs)
            by_partition.setdefault(key, []).append(one)
        for key, rows in by_partition.items():
            for part in _parts(rows):
                bound = [self._bound(prepared, key, one) for one in part]
                yield bound[0] if len(bound) == 1 else _batch(bound)

    def _bound(self, prepared: _Prepared, key: tuple[str, str, int], one: ArchivedMessage) -> Any:
        stamp = schema.message_stamp(one.revision, one.offset)
        return prepared.message.bind((*key, one.conversation_seq, one.record, stamp))

    async def _settle(self, statements: Sequence[Any], deadline: float) -> None:
        """Apply all; what timed out or was refused for the moment is repeated until `deadline`.

        `deadline` is a time of the event loop's clock. StoreUnavailable (UNKNOWN) when some are open then:
        the caller repeats its whole call, and finds what was applied.
        """
        loop = asyncio.get_running_loop()
        left, attempt = list(statements), 0
        while True:
            results = await self._session.run(left)
            errors = [one for one in results if isinstance(one, Exception)]
            if not errors:
                return
            fatal = next((one for one in errors if not is_transient(one)), None)
            if fatal is not None:
                raise translate(fatal, self._where) from fatal
            left = [one for one, result in zip(left, results, strict=True) if isinstance(result, Exception)]
            pause = min(RETRY_MAX_S, RETRY_FIRST_S * 2**attempt) * (0.5 + self._uniform() / 2)
            if loop.time() + pause >= deadline:
                raise StoreUnavailable(
                    f"{self._where}: {len(left)} of {len(statements)} writes are not settled: "
                    f"{type(errors[0]).__name__}: {errors[0]}",
                    Outcome.UNKNOWN,
                ) from errors[0]
            await asyncio.sleep(pause)
            attempt += 1

    # -- reading

    async def watermark(self, partition: int) -> int:
        """The archive watermark of an Outbox partition, -1 for none."""
        prepared = await self._statements()
        (rows,) = await self._session.read([prepared.get_watermark.bind((partition,))])
        return int(rows[0][0]) if rows else -1

    async def fence(self, partition: int) -> int:
        """The epoch of the last barrier that was passed, 0 for none."""
        return max(0, await self.watermark(schema.fence_row(partition)))

    async def raise_fence(self, partition: int, epoch: int) -> None:
        """On a quorum; the highest stands. See the port."""
        prepared = await self._statements()
        row = (schema.fence_row(partition), epoch, schema.watermark_stamp(epoch))
        await self._settle([prepared.watermark.bind(row)], asyncio.get_running_loop().time() + self._settle_s)

    async def records(self, wanted: Sequence[Address]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where there is none."""
        if not wanted:
            return []
        prepared = await self._statements()
        by_partition: dict[tuple[str, str, int], set[int]] = {}
        for tenant, chat, seq in wanted:
            if 0 < seq <= SEQ_MAX:
                by_partition.setdefault((tenant, chat, seq // self._bucket_seqs), set()).add(seq)
        asked = [
            (key, part)
            for key, seqs in by_partition.items()
            for ordered in (sorted(seqs),)
            for part in (ordered[at : at + IN_MAX] for at in range(0, len(ordered), IN_MAX))
        ]
        answers = await self._session.read([prepared.records.bind((*key, part)) for key, part in asked])
        found = {
            (key[0], key[1], seq): record
            for (key, _), rows in zip(asked, answers, strict=True)
            for seq, record in rows
        }
        return [found.get(address) for address in wanted]

    async def range(
        self,
        tenant_id: str,
        conversation_id: str,
        after_seq: int,
        up_to_seq: int,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[ArchivedMessage]:
        """after_seq < seq <= up_to_seq, at most `limit`, from the end that `newest_first` names."""
        require_limit(limit)
        await self._statements()
        first, last = max(after_seq + 1, 1), min(up_to_seq, SEQ_MAX)
        if last < first:
            return []
        page = _Page((tenant_id, conversation_id), first, last, limit, newest_first, [])
        lowest, highest = first // self._bucket_seqs, last // self._bucket_seqs
        if lowest == highest:
            await self._read_bucket(page, lowest)
        else:
            async for bucket in self._buckets(page, lowest, highest):
                await self._read_bucket(page, bucket)
                if page.is_full:
                    break
        return page.found

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""
        newest = await self.range(tenant_id, conversation_id, 0, SEQ_MAX, 1, newest_first=True)
        return newest[0].conversation_seq if newest else 0

    # -- states of users

    async def store_states(self, states: Sequence[ArchivedState]) -> None:
        """States on a quorum, the highest version of each; see `sessions.ports.UserStateArchive`."""
        if states:
            write, _ = await self._state_statements()
            deadline = asyncio.get_running_loop().time() + self._settle_s
            bound = [write.bind((*one, max(1, one.version))) for one in states]
            for start in range(0, len(bound), ROUND_STATEMENTS_MAX):
                await self._settle(bound[start : start + ROUND_STATEMENTS_MAX], deadline)

    async def user_states(
        self, tenant_id: str, user_id: str, after_conversation_id: str, limit: int
    ) -> list[ArchivedState]:
        """States of a user; see `sessions.ports.UserStateReader`."""
        _, read = await self._state_statements()
        (rows,) = await self._session.read([read.bind((tenant_id, user_id, after_conversation_id, limit))])
        return [ArchivedState(tenant_id, user_id, *row) for row in rows]

    async def _state_statements(self) -> tuple[Any, Any]:
        """Prepared when they are first needed: messages are archived without this table, too."""
        if self._states is None:
            await self._statements()
            self._states = tuple(await self._session.prepare((schema.INSERT_STATE, schema.SELECT_STATES)))
        return self._states[0], self._states[1]

    async def close(self) -> None:
        """Disconnect."""
        await self._session.close()

    async def _buckets(self, page: "_Page", lowest: int, highest: int) -> AsyncIterator[int]:
        """The buckets between the two (inclusive) that may hold messages, in the order of the page."""
        if lowest == 0 and not page.newest_first:
            yield 0
        lowest_listed = max(lowest, 1)
        while lowest_listed <= highest:
            listed = await self._listed_buckets(page, lowest_listed, highest)
            for bucket in listed:
                yield bucket
            if len(listed) < BUCKETS_PAGE:
                break
            if page.newest_first:
                highest = listed[-1] - 1
            else:
                lowest_listed = listed[-1] + 1
        if lowest == 0 and page.newest_first:
            yield 0

    async def _listed_buckets(self, page: "_Page", lowest: int, highest: int) -> list[int]:
        prepared = await self._statements()
        text = prepared.buckets_back if page.newest_first else prepared.buckets
        (rows,) = await self._session.read([text.bind((*page.conversation, lowest, highest, BUCKETS_PAGE))])
        return [int(bucket) for (bucket,) in rows]

    async def _read_bucket(self, page: "_Page", bucket: int) -> None:
        prepared = await self._statements()
        text = prepared.range_back if page.newest_first else prepared.range
        while not page.is_full:
            size = min(page.limit - len(page.found), ROWS_MAX)
            first, last = page.bounds()
            (rows,) = await self._session.read([text.bind((*page.conversation, bucket, first, last, size))])
            page.take(rows)
            if len(rows) < size:
                return

    async def _statements(self) -> _Prepared:
        """The prepared statements, once connected and once the layout was found to be ours."""
        if self._prepared is None:
            async with self._preparing:
                if self._prepared is None:
                    rows = await self._session.execute(schema.SELECT_LAYOUT, (schema.LAYOUT_ID,), read=True)
                    found = schema.Layout(*rows[0]) if rows else None
                    self._bucket_seqs = schema.require_layout(found, self._keyspace)
                    self._prepared = _Prepared(*await self._session.prepare(_TEXTS))
        return self._prepared


@dataclass(slots=True)
class _Page:
    """A page that is being read: what is wanted, and what was found so far, in its order."""

    conversation: Conversation
    first: int
    last: int
    limit: int
    newest_first: bool
    found: list[ArchivedMessage]

    @property
    def is_full(self) -> bool:
        """Whether nothing more is wanted."""
        return len(self.found) >= self.limit

    def bounds(self) -> tuple[int, int]:
        """The seqs that are still wanted, both inclusive."""
        if not self.found:
            return self.first, self.last
        reached = self.found[-1].conversation_seq
        return (self.first, reached - 1) if self.newest_first else (reached + 1, self.last)

    def take(self, rows: Rows) -> None:
        """Add rows of (seq, record, write timestamp)."""
        self.found += [
            ArchivedMessage(*self.conversation, seq, record, schema.revision_of_stamp(stamp))
            for seq, record, stamp in rows
        ]


def _parts(rows: Sequence[ArchivedMessage]) -> Iterator[list[ArchivedMessage]]:
    """Rows of one partition in batches of bounded count and size."""
    part: list[ArchivedMessage] = []
    nbytes = 0
    for one in rows:
        if part and (len(part) >= BATCH_ROWS_MAX or nbytes + len(one.record) > BATCH_BYTES_MAX):
            yield part
            part, nbytes = [], 0
        part.append(one)
        nbytes += len(one.record)
    if part:
        yield part


def _batch(bound: Sequence[Any]) -> BatchStatement:
    batch = BatchStatement(batch_type=BatchType.UNLOGGED)
    for one in bound:
        batch.add(one)
    batch.is_idempotent = True
    return batch
