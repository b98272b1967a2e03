"""The archive: every committed message, once, for ever (Spec: §1 ARCHIVED, §3).

* ``ports``: `ArchiveReader` (anybody) and `Archive` (the one writer).
* ``service``: what the archiver does with a batch of Outbox records.
* ``rocksdb_archive``, ``rocksdb_reader``: the embedded default; ``memory_archive``: its verified fake.
* ``opening``: from settings to an archive.
"""
