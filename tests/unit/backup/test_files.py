"""Files of a backup: whole, or refused before anything is restored."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qim_streams.backup.files import MANIFEST, check, read_rows, write_manifest, write_rows
from qim_streams.errors import ConfigError

ROWS = [[(0, b"k", b"v"), (1, b"k", None)], [], [(7, None, b"\xff" * 5_000)]]


async def batches() -> AsyncIterator[list[Any]]:
    """Rows as an adapter gives them."""
    for batch in ROWS:
        yield batch


async def backup(directory: Path) -> Path:
    """A whole backup of one file."""
    await asyncio.to_thread(directory.mkdir)
    count = await write_rows(directory / "a.rows", batches())
    assert count == 3
    write_manifest(directory, {"outbox_partitions": 4}, {"a.rows": count})
    return directory


async def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    directory = await backup(tmp_path / "b")
    assert check(directory)["outbox_partitions"] == 4
    assert [row for batch in read_rows(directory / "a.rows") for row in batch] == [
        [0, b"k", b"v"],
        [1, b"k", None],
        [7, None, b"\xff" * 5_000],
    ]
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}


@pytest.mark.parametrize("at", [0, 3, 5, 9, 40, 5_000])
async def test_a_bit_that_differs_is_noticed(tmp_path: Path, at: int) -> None:
    directory = await backup(tmp_path / "b")
    path = directory / "a.rows"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="not what was written"):
        check(directory)
    with pytest.raises(ConfigError, match=r"damaged|cut off"):
        list(read_rows(path))


@pytest.mark.parametrize("size", [0, 1, 8, 20, 5_000])
async def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path, size: int) -> None:
    directory = await backup(tmp_path / "b")
    path = directory / "a.rows"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match=r"damaged|cut off"):
        list(read_rows(path))
    with pytest.raises(ConfigError):
        check(directory)


async def test_without_a_manifest_there_is_no_backup(tmp_path: Path) -> None:
    directory = await backup(tmp_path / "b")
    manifest = (directory / MANIFEST).read_text()
    (directory / MANIFEST).write_text(manifest.replace('"format": 1', '"format": 2'))
    with pytest.raises(ConfigError, match="format 2"):
        check(directory)
    (directory / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="whole backup"):
        check(directory)
