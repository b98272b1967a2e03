"""Changelog tables with explicit partitions, one write per batch, and a barrier that means something.

`AckedTable` keeps Faust's recovery (changelog topic, RocksDB per partition, persisted offset) and
replaces its write path: local RocksDB first (one WriteBatch), then the changelog records through the
worker's `LogProducer`, then the persisted offset once the broker has acknowledged. `barrier` waits for
those acknowledgements and raises on a refusal. The order matters: a local value without its changelog
record is redone after a crash; a persisted offset above a value that is missing would lose it for good.

Keys and values are bytes. Local keys (`local`) live in the same RocksDB under a prefix and have no
changelog: for indexes that can be rebuilt from the table. Values must be absolute, never increments
(Spec: §14.7). Dictionary access (`table[key]`) is refused: it would pick the partition by context.

Spec: §5 (DispatchProgress, W), §14.7.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import faust
import rocksdict
from faust.stores import rocksdb as faust_rocksdb
from faust.types import TP

from qim_streams.errors import InvariantViolation
from qim_streams.streaming import metrics
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, OutgoingRecord

log = logging.getLogger(__name__)

LOCAL_PREFIX: Final = b"\x00local\x00"
_RESERVED: Final = (LOCAL_PREFIX, b"__faust\x00")

_BLOCK_CACHE_BYTES: Final = 8 * 1024 * 1024
_BLOOM_BITS_PER_KEY: Final = 10.0
_MEMTABLE_BLOOM_SHARE: Final = 0.1  # of a write buffer: a look-up of what it lacks is four times as fast
_WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
_WRITE_BUFFERS: Final = 2
_OPEN_FILES_MAX: Final = 64
_WAL_BYTES_MAX: Final = 16 * 1024 * 1024
_INFO_LOGS: Final = 2

Puts = Mapping[bytes, bytes | None]


class SmallOptions(faust_rocksdb.RocksDBOptions):
    """RocksDB options with bounded memory and files (Faust's default is a 2 GiB cache per partition)."""

    def __init__(self) -> None:
        super().__init__(
            max_open_files=_OPEN_FILES_MAX,
            write_buffer_size=_WRITE_BUFFER_BYTES,
            max_write_buffer_number=_WRITE_BUFFERS,
            target_file_size_base=_WRITE_BUFFER_BYTES,
            block_cache_size=_BLOCK_CACHE_BYTES,
            use_rocksdict=True,
        )

    def as_options(self) -> rocksdict.Options:
        """Faust's options plus a bound on the log files that RocksDB keeps."""
        options = super().as_options()
        blocks = rocksdict.BlockBasedOptions()
        # Faust's filter lets a quarter of the misses through; look-ups of new ids are nearly all misses.
        blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        blocks.set_block_cache(rocksdict.Cache(_BLOCK_CACHE_BYTES))
        options.set_block_based_table_factory(blocks)
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_SHARE)
        options.set_max_total_wal_size(_WAL_BYTES_MAX)
        options.set_keep_log_file_num(_INFO_LOGS)
        options.set_recycle_log_file_num(0)
        return options


class TableStore(faust_rocksdb.Store):
    """Faust's RocksDB store with small options, that closes what it gives up.

    A local database that cannot be read (a torn disk) is set aside and built anew from the changelog.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rocksdb_options = SmallOptions()

    def open_db(self, partition: int) -> rocksdict.Rdict:
        """The open database of an owned partition; InvariantViolation when it is not owned."""
        try:
            return self._dbs[partition]
        except KeyError:
            raise InvariantViolation(
                f"table {self.table_name}: partition {partition} is not open here"
            ) from None

    def is_open(self, partition: int) -> bool:
        """Whether the partition's database is open, that is, owned."""
        return partition in self._dbs

    def _open_for_partition(self, partition: int) -> rocksdict.Rdict:
        try:
            return super()._open_for_partition(partition)
        except Exception as error:
            if "orruption" not in str(error):
                raise
            path = self.partition_path(partition)
            aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
            log.critical("table %s: %s is unreadable, moved to %s: %s", self.table_name, path, aside, error)
            os.replace(path, aside)
            return super()._open_for_partition(partition)

    def revoke_partitions(self, table: Any, tps: set[TP]) -> None:
        """Close the databases of revoked partitions now, so that a next owner on this disk can open them."""
        for tp in tps:
            if tp.topic in table.changelog_topic.topics:
                self._close(tp.partition)

    async def stop(self) -> None:
        """Close everything; what cannot be closed is logged, so that the rest of the stop goes on."""
        for partition in list(self._dbs):
            try:
                self._close(partition)
            except Exception:
                log.exception("table %s: partition %d could not be closed", self.table_name, partition)

    def _close(self, partition: int) -> None:
        db = self._dbs.pop(partition, None)
        if db is not None:
            db.close()


class LocalKeys:
    """Keys of one partition without changelog: a derived index, lost and rebuilt with the directory."""

    def __init__(self, db: rocksdict.Rdict) -> None:
        self._db = db

    def read(self, key: bytes) -> bytes | None:
        """The value of `key`, None when absent."""
        return cast("bytes | None", self._db.get(LOCAL_PREFIX + key))

    def read_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order."""
        return cast("list[bytes | None]", self._db.get([LOCAL_PREFIX + key for key in keys]))

    def write_batch(self, puts: Puts) -> None:
        """Write all keys in one go; None deletes."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        _fill(batch, puts, LOCAL_PREFIX)
        self._db.write(batch)

    def iterate(self, start_key: bytes = b"", *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start_key` (inclusive; empty: the first, or last in reverse) in key order."""
        return _iterate(self._db, start_key, reverse, LOCAL_PREFIX)

    def clear(self) -> None:
        """Delete every local key."""
        self._db.delete_range(LOCAL_PREFIX, LOCAL_PREFIX[:-1] + b"\x01")


class AckedTable(faust.Table):
    """A Faust table whose writes can be waited for. Create it with `StreamApp.acked_table`."""

    def __init__(self, *args: Any, log_producer: LogProducer | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._log_producer = log_producer
        self._unacked: dict[int, list[asyncio.Future[list[int]]]] = {}
        self._written = metrics.TABLE_WRITES.labels(self.name or "?")

    def _new_store_by_url(self, url: Any) -> TableStore:
        return TableStore(
            url,
            self.app,
            self,
            table_name=self.name,
            key_type=bytes,
            key_serializer="raw",
            value_type=bytes,
            value_serializer="raw",
            loop=self.loop,
        )

    def info(self) -> Mapping[str, Any]:
        """What a clone of this table is made from."""
        return {**super().info(), "log_producer": self._log_producer}

    @property
    def store(self) -> TableStore:
        """The RocksDB store behind the table."""
        return cast(TableStore, self.data)

    # -- reading

    def read(self, partition: int, key: bytes) -> bytes | None:
        """The value of `key` in `partition`, None when absent."""
        return cast("bytes | None", self.store.open_db(partition).get(key))

    def iterate(
        self, partition: int, start_key: bytes = b"", *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `partition` from `start_key` (inclusive) in key order; `reverse` goes down.

        An empty `start_key` begins at the first key (the last one in reverse). Local and internal keys
        are not seen.
        """
        return _iterate(self.store.open_db(partition), start_key, reverse, b"")

    def local(self, partition: int) -> LocalKeys:
        """The keys of `partition` that have no changelog."""
        return LocalKeys(self.store.open_db(partition))

    # -- writing

    def write_batch(self, partition: int, puts: Puts, local: Puts | None = None) -> None:
        """Write `puts` (None deletes) locally and send their changelog records; `local` keys go with them.

        Local keys are written in the same RocksDB batch. Refusals (RecordTooLargeError, a full or failed
        producer) come before anything is written. Durable only after `barrier`.
        """
        producer = self._producer()
        topic = self.changelog_topic_name
        for key in puts:
            if key.startswith(_RESERVED):
                raise ValueError(f"table {self.name}: key {key[:16]!r} uses a reserved prefix")
        records = [OutgoingRecord(topic, partition, key, value) for key, value in puts.items()]
        producer.check(records)
        batch = rocksdict.WriteBatch(raw_mode=True)
        _fill(batch, puts, b"")
        _fill(batch, local or {}, LOCAL_PREFIX)
        self.store.open_db(partition).write(batch)
        if not records:
            return
        future = producer.append_nowait(records)
        future.add_done_callback(lambda done: self._acknowledged(partition, done))
        self._unacked.setdefault(partition, []).append(future)
        self._written.inc(len(records))

    async def barrier(self, partition: int) -> None:
        """Wait until every write of `partition` so far is acknowledged; raises what a refusal raised."""
        futures = self._unacked.pop(partition, None)
        if futures:
            await asyncio.gather(*futures)

    def _producer(self) -> LogProducer:
        producer = self._log_producer or getattr(self.app, "log_producer", None)
        if producer is None:
            raise InvariantViolation(f"table {self.name}: the application has no log producer")
        return cast(LogProducer, producer)

    def _acknowledged(self, partition: int, done: "asyncio.Future[list[int]]") -> None:
        if done.cancelled() or done.exception() is not None:
            return  # barrier raises it
        if self.store.is_open(partition):  # a late answer must not open a database given up meanwhile
            self.store.set_persisted_offset(TP(self.changelog_topic_name, partition), max(done.result()))

    # -- what Faust calls

    def apply_changelog_batch(self, batch: Any) -> None:
        """Apply recovered records; a failure ends the process (Faust would log it and leave a hole)."""
        try:
            super().apply_changelog_batch(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
            die(f"table {self.name}: recovered records could not be applied", error)

    def on_key_get(self, key: Any) -> None:
        """Refuse dictionary access."""
        raise TypeError(f"table {self.name}: use read(partition, key)")

    def on_key_set(self, key: Any, value: Any) -> None:
        """Refuse dictionary access."""
        raise TypeError(f"table {self.name}: use write_batch(partition, {{key: value}})")

    def on_key_del(self, key: Any) -> None:
        """Refuse dictionary access."""
        raise TypeError(f"table {self.name}: use write_batch(partition, {{key: None}})")


def partition_path(datadir: Path, table: str, partition: int) -> Path:
    """Where the database of a table partition lies under a worker's data directory."""
    return datadir / "v1" / "tables" / f"{table}-{partition}.db"


def _fill(batch: rocksdict.WriteBatch, puts: Puts, prefix: bytes) -> None:
    for key, value in puts.items():
        if value is None:
            batch.delete(prefix + key)
        else:
            batch.put(prefix + key, value)


def _iterate(
    db: rocksdict.Rdict, start_key: bytes, reverse: bool, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    it = db.iter()
    if reverse:
        if start_key:
            it.seek_for_prev(prefix + start_key)
        elif prefix:
            it.seek_for_prev(prefix + b"\xff" * 64)
        else:
            it.seek_to_last()
    elif start_key or prefix:
        it.seek(prefix + start_key)
    else:
        it.seek_to_first()
    cut = len(prefix)
    while it.valid():
        key = cast(bytes, it.key())
        if prefix and not key.startswith(prefix):
            return
        if prefix or not key.startswith(_RESERVED):
            yield key[cut:], cast(bytes, it.value())
        (it.prev if reverse else it.next)()
