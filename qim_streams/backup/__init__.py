"""Backup and restore of what cannot be rebuilt (``docs/decisions/``: what that is, and why).

* ``files``: framed files with checksums, and the manifest. * ``ports``: what is read and written.
* ``taking`` and ``restoring``: the steps.
* ``redis_families``, ``kafka_rows``, ``rocksdb_pairs``: the adapters.
"""
