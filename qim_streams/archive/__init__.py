"""The archive: every committed message, once, for ever (Spec: §1 ARCHIVED, §3), and the hot tier behind it.

* ``ports``: `ArchiveReader` (anybody), `Archive` (who writes it), `HotRecords` (what the trimmer sees).
* ``rules``, ``service``: what the archiver does with a batch of Outbox records.
* ``cassandra_schema``, ``cassandra_session``, ``cassandra_archive``, ``cassandra_admin``: on a cluster.
* ``rocksdb_archive``, ``rocksdb_reader``: the embedded default; ``memory_archive``: their verified fake.
* ``trimmer``, ``redis_hot``, ``tiers``: what is archived leaves Redis, and readers ask both.
* ``opening``: from settings to an archive.
"""
