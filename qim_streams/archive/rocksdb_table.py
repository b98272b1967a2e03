"""The blocking half of the RocksDB archive: options, opening, reads, and errors as ours.

Both the writer and the readers of other processes use it. No call here may run on an event loop.

Spec: §14.8.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
)

from qim_streams.archive import rocksdb_layout as layout
from qim_streams.archive.errors import ArchiveLockedError
from qim_streams.archive.ports import SEQ_MAX, ArchivedMessage
from qim_streams.errors import ConfigError, Outcome, QimError, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

BLOCK_CACHE_BYTES = 16 * 1024 * 1024
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
WAL_BYTES_MAX = 64 * 1024 * 1024
# While it compacts, half of the archiver's CPU is RocksDB's at 5,000 messages a second, two thirds of that
# compaction. Files of level 0 are merged with all of level 1, so twice as many at once is less of it, and
# what is merged again soon is not worth compressing.
LEVEL_0_FILES = 8
COMPRESS_FROM_LEVEL = 2
WRITER_OPEN_FILES_MAX = 256
READER_OPEN_FILES_MAX = -1  # a reader must keep files open that the writer's compaction deletes
_BLOOM_BITS = 10
_MEMTABLE_BLOOM_SHARE = 0.1  # of a write buffer: a look-up of what it lacks is four times as fast


def options(*, open_files_max: int) -> Options:
    """RocksDB options for one small writer: memory is bounded to about 64 MB."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(_BLOOM_BITS, False)
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_block_based_table_factory(table)
    chosen.set_write_buffer_size(WRITE_BUFFER_BYTES)
    chosen.set_max_write_buffer_number(2)
    chosen.set_memtable_whole_key_filtering(True)
    chosen.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_SHARE)
    chosen.set_max_total_wal_size(WAL_BYTES_MAX)
    chosen.set_max_open_files(open_files_max)
    chosen.set_max_background_jobs(2)
    chosen.set_compression_type(DBCompressionType.lz4())
    chosen.set_min_level_to_compress(COMPRESS_FROM_LEVEL)
    chosen.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES)
    chosen.set_keep_log_file_num(4)
    chosen.set_stats_dump_period_sec(0)
    return chosen


def translate(error: BaseException, what: str) -> QimError:
    """Our error for one of RocksDB's, which come as plain ``Exception`` with a text."""
    text = str(error)
    if isinstance(error, QimError):
        return error
    if isinstance(error, DbClosedError):
        return StoreError(f"{what}: closed", Outcome.NOT_APPLIED)
    if "While lock file" in text or "lock hold by" in text:
        return ArchiveLockedError(
            f"{what} is in use by another process; with the RocksDB archive one archiver owns the directory "
            "and all Outbox partitions: stop the other one, or set another QIM_ARCHIVE_ROCKSDB_DIR"
        )
    if text.startswith("Corruption"):
        return StoreError(f"{what}: {text}; restore the directory from a copy", Outcome.NOT_APPLIED)
    return StoreUnavailable(f"{what}: {text}", Outcome.UNKNOWN)


def open_writer(directory: Path) -> Rdict:
    """The archive opened for writing, created if missing.

    ArchiveLockedError when another process has it, ConfigError for a layout of another version.
    """
    what = f"the archive {directory}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        db = Rdict(str(directory), options(open_files_max=WRITER_OPEN_FILES_MAX))
    except Exception as error:
        raise translate(error, what) from error
    try:
        found = db.get(layout.VERSION_KEY)
        if found is None:
            db.put(layout.VERSION_KEY, layout.VERSION)
        else:
            _require_version(found, what)
    except ConfigError:
        db.close()
        raise
    return db


def open_secondary(directory: Path, scratch: Path) -> Rdict:
    """The archive opened for reading beside its writer; `scratch` is a private directory for its log."""
    what = f"the archive {directory}"
    try:
        db = Rdict(
            str(directory),
            options(open_files_max=READER_OPEN_FILES_MAX),
            access_type=AccessType.secondary(str(scratch)),
        )
    except Exception as error:
        raise translate(error, what) from error
    found = db.get(layout.VERSION_KEY)
    if found is not None:
        _require_version(found, what)
    return db


def close(db: Rdict, what: str) -> None:
    """Close a database that may be broken; it is closed afterwards in any case."""
    try:
        db.close()
    except Exception as error:  # noqa: BLE001 - the binding's errors have no class of their own
        # Nothing is lost with it: what was acknowledged is in the log on disk, the rest is repeated.
        log.warning("%s: closed with an error: %s", what, error)


def _require_version(found: bytes, what: str) -> None:
    if found != layout.VERSION:
        raise ConfigError(
            f"{what} has layout {found.hex()}, this version knows {layout.VERSION.hex()}; "
            "use the version that wrote it, or set another QIM_ARCHIVE_ROCKSDB_DIR"
        )


def read_watermark(db: Rdict, partition: int) -> int:
    """The archive watermark of a partition, -1 for none."""
    return layout.decode_watermark(db.get(layout.watermark_key(partition)))


def read_records(db: Rdict, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
    """MessageRecord bytes by address, None where there is none."""
    if not wanted:
        return []
    found: list[bytes | None] = db.get([layout.message_key(*address) for address in wanted])
    return [None if value is None else layout.decode_message(value)[0] for value in found]


def without_superseded(db: Rdict, messages: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
    """The messages but those of which the same or a higher revision is stored."""
    if not messages:
        return []
    stored = db.get(
        [layout.message_key(one.tenant_id, one.conversation_id, one.conversation_seq) for one in messages]
    )
    return [
        message
        for message, value in zip(messages, stored, strict=True)
        if value is None or layout.decode_message(value)[1] < message.revision
    ]


def read_range(
    db: Rdict,
    conversation: tuple[str, str],
    after_seq: int,
    up_to_seq: int,
    limit: int,
    *,
    newest_first: bool = False,
) -> list[ArchivedMessage]:
    """after_seq < seq <= up_to_seq of (tenant, conversation), at most `limit`, from one of the ends."""
    first, last = max(after_seq + 1, 0), min(up_to_seq, SEQ_MAX)
    if last < first:
        return []
    lowest, highest = layout.message_key(*conversation, first), layout.message_key(*conversation, last)
    read = ReadOptions()
    read.set_iterate_upper_bound(highest + b"\0")
    cursor = db.iter(read)
    if newest_first:
        cursor.seek_for_prev(highest)
    else:
        cursor.seek(lowest)
    found: list[ArchivedMessage] = []
    while len(found) < limit and cursor.valid() and cursor.key() >= lowest:
        record, revision = layout.decode_message(cursor.value())
        found.append(ArchivedMessage(*conversation, layout.seq_of(cursor.key()), record, revision))
        if newest_first:
            cursor.prev()
        else:
            cursor.next()
    cursor.status()  # an iterator that met an I/O error looks like one at its end; this raises
    return found


def read_latest(db: Rdict, tenant_id: str, conversation_id: str) -> int:
    """The largest archived seq of a conversation, 0 for none."""
    cursor = db.iter()
    cursor.seek_for_prev(layout.message_key(tenant_id, conversation_id, SEQ_MAX))
    if cursor.valid() and cursor.key().startswith(layout.conversation_prefix(tenant_id, conversation_id)):
        return layout.seq_of(cursor.key())
    cursor.status()
    return 0
