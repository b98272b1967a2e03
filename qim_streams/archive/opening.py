"""Which archive the settings ask for, and opening it: for writing (one process) or for reading (any).

Spec: §14.8.
"""

import asyncio
import logging

from qim_streams.archive.errors import ArchiveLockedError
from qim_streams.archive.ports import Archive, ArchiveReader
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings

_LOCK_STEP_S = 0.25

log = logging.getLogger(__name__)


def _require_rocksdb(settings: Settings) -> None:
    if settings.archive != "rocksdb":
        raise ConfigError(
            f"QIM_ARCHIVE: {settings.archive} is not available yet in this version; set it to rocksdb"
        )


async def open_archive(settings: Settings) -> Archive:
    """The archive for its one writer.

    Waits up to `archive_lock_wait_s` for another process to let go of it (the one that this one replaces,
    which flushes and commits first), then ArchiveLockedError. ConfigError for an archive that this version
    does not have.
    """
    _require_rocksdb(settings)
    from qim_streams.archive.rocksdb_archive import RocksArchive

    directory, loop = settings.archive_dir(), asyncio.get_running_loop()
    wait_s = settings.archive_lock_wait_s
    deadline = loop.time() + wait_s
    told = False
    while True:
        try:
            return await RocksArchive.open(directory)
        except ArchiveLockedError:
            if loop.time() >= deadline:
                raise
        if not told:
            log.warning("archive %s is in use; waiting up to %.0f s for it", directory, wait_s)
            told = True
        await asyncio.sleep(_LOCK_STEP_S)


def open_archive_reader(settings: Settings) -> ArchiveReader:
    """The archive for a process that only reads (gateway, API, trace). Nothing is opened before a read."""
    _require_rocksdb(settings)
    from qim_streams.archive.rocksdb_reader import RocksArchiveReader

    return RocksArchiveReader(settings.archive_dir())
