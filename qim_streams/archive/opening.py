"""Which archive the settings ask for, and opening it: for writing (the archiver) or for reading (anybody).

The RocksDB archive has one writing process, the Cassandra archive any number.

Spec: §14.8.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from qim_streams.archive.errors import ArchiveLockedError
from qim_streams.archive.ports import Archive, ArchiveReader
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings

if TYPE_CHECKING:
    from qim_streams.archive.cassandra_session import CassandraOptions

_LOCK_STEP_S = 0.25

log = logging.getLogger(__name__)


async def open_archive(settings: Settings) -> Archive:
    """The archive for a process that writes it.

    RocksDB: waits up to `archive_lock_wait_s` for another process to let go of it (the one that this one
    replaces, which flushes and commits first), then ArchiveLockedError. Cassandra: ConfigError when its
    schema is missing; a cluster that is away is waited for by the calls, not here.
    """
    if settings.archive == "cassandra":
        options = cassandra_options(settings)
        from qim_streams.archive.cassandra_archive import CassandraArchive

        return await CassandraArchive.open(options)
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
    if settings.archive == "cassandra":
        options = cassandra_options(settings)
        from qim_streams.archive.cassandra_archive import CassandraArchive

        return CassandraArchive(options)
    from qim_streams.archive.rocksdb_reader import RocksArchiveReader

    return RocksArchiveReader(settings.archive_dir())


def cassandra_options(settings: Settings) -> "CassandraOptions":
    """Where the cluster is; ConfigError when the driver is not installed or no host is named."""
    try:
        from qim_streams.archive.cassandra_session import CassandraOptions
    except ImportError as error:
        raise ConfigError(
            f"QIM_ARCHIVE: cassandra needs the driver ({error}): pip install 'qim-streams[cassandra]'"
        ) from error
    hosts = tuple(host.strip() for host in settings.cassandra_hosts.split(",") if host.strip())
    if not hosts:
        raise ConfigError("QIM_CASSANDRA_HOSTS: names no host; give one or more, comma separated")
    return CassandraOptions(
        hosts=hosts,
        port=settings.cassandra_port,
        keyspace=settings.cassandra_keyspace,
        local_dc=settings.cassandra_local_dc,
        consistency=settings.cassandra_consistency,
        user=settings.cassandra_user,
        password_file=settings.cassandra_password_file,
        tls_ca_file=settings.cassandra_tls_ca_file,
        tls_cert_file=settings.cassandra_tls_cert_file,
        tls_key_file=settings.cassandra_tls_key_file,
        connect_timeout_s=settings.cassandra_connect_timeout_ms / 1000,
        request_timeout_s=settings.cassandra_request_timeout_ms / 1000,
    )
