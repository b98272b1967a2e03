"""What a loss of power can take from the append-only file of a real Redis."""

from pathlib import Path

import pytest
import redis

from qim_streams.embedded.redis_server import EmbeddedRedis
from tests.support.append_only import SNAPSHOT, safe_bytes, written_file
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.integration


def test_all_of_a_file_that_was_never_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "appendonly.aof"
    path.write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n" + b"\xff" + bytes(8) + b"*1\r\n$4\r\nEXEC\r\n")
    assert safe_bytes(path) == 0


def test_what_was_appended_behind_a_snapshot(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis", progress=lambda _: None) as server:
        client = redis.Redis.from_url(server.url)
        client.mset({f"key{n}": bytes([n, 255]) * 9 for n in range(200)})
        client.bgrewriteaof()
        eventually_sync(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 60, "the file")
        path = written_file(server.data_dir)
        if not path.read_bytes().startswith(SNAPSHOT):
            return  # a Redis that keeps the snapshot in a file of its own
        before = path.stat().st_size
        assert safe_bytes(path) == before
        client.set("later", "1")
        eventually_sync(lambda: path.stat().st_size > before, 60, "the write")
        assert safe_bytes(path) == before
