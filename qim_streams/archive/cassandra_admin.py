"""Making the schema of the Cassandra archive: what ``qim archive init`` does.

Every step changes nothing where it was done before, so the command may be repeated and may be run from two
machines at once. What it does not do: change tables that exist (replication, compaction: ALTER is the
operator's), or remove anything.

Spec: §14.8.
"""

from collections.abc import Mapping

from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive.cassandra_session import CassandraOptions, CassandraSession
from qim_streams.errors import ConfigError

DDL_TIMEOUT_S = 60.0  # a node answers when all of them agree on the schema


async def create_archive(
    options: CassandraOptions, replication_map: Mapping[str, str], bucket_seqs: int
) -> schema.Layout:
    """Make keyspace, tables and the layout's row; the layout that stands then.

    ConfigError when the keyspace has an archive of another bucket size or version; StoreUnavailable: repeat.
    """
    session = CassandraSession(options, keyspace=False)
    try:
        for statement in schema.create_statements(options.keyspace, replication_map):
            await session.execute(statement, timeout_s=DDL_TIMEOUT_S)
    finally:
        await session.close()
    return await _agree_on_layout(options, bucket_seqs)


async def _agree_on_layout(options: CassandraOptions, bucket_seqs: int) -> schema.Layout:
    session = CassandraSession(options)
    try:
        rows = await session.execute(schema.SELECT_LAYOUT, (schema.LAYOUT_ID,), read=True)
        if not rows:
            await session.execute(schema.layout_statement(options.keyspace, bucket_seqs))
            # Of two that were first at once one stands, and both see which.
            rows = await session.execute(schema.SELECT_LAYOUT, (schema.LAYOUT_ID,), read=True)
    finally:
        await session.close()
    found = schema.Layout(*rows[0])
    schema.require_layout(found, options.keyspace)
    if found.bucket_seqs != bucket_seqs:
        raise ConfigError(
            f"keyspace {options.keyspace} has an archive with {found.bucket_seqs} seqs in a bucket, not "
            f"{bucket_seqs}: the number is fixed once used; leave --bucket-seqs at {found.bucket_seqs}"
        )
    return found
