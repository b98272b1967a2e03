"""Declarations of the RocksDB-backed changelog tables, and their web views."""
