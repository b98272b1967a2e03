"""Files of a backup: rows in frames with checksums, and a manifest with the digest of each file.

::

    frame = length u32, crc32 u32 (both big-endian), then `length` bytes: msgpack list of rows

A file ends with an empty frame (length 0), so one that was cut off is noticed. The manifest is written last,
by a rename: a directory without one is no backup.

Invariants: memory is bounded by a frame; a file that differs by one bit from what was written is refused
before anything is restored (`check`).

Spec: §14.8.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack

from qim_streams.errors import ConfigError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
_HEAD = struct.Struct(">II")
_BLOCK: Final = 1024 * 1024

Row = Sequence[Any]


async def write_rows(path: Path, batches: AsyncIterator[Sequence[Row]]) -> int:
    """Write all rows; how many. The file is on the disk afterwards. OSError as it comes."""
    count = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        async for batch in batches:
            if batch:
                _write_frame(file, msgpack.packb(list(batch), use_bin_type=True))
                count += len(batch)
        _write_frame(file, b"")
        file.flush()
        os.fsync(file.fileno())
    return count


def _write_frame(file: Any, data: bytes) -> None:
    if len(data) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(data)} bytes")
    file.write(_HEAD.pack(len(data), zlib.crc32(data)))
    file.write(data)


def read_rows(path: Path) -> Iterator[list[Any]]:
    """Batches of rows as they were written; ConfigError for a file that is damaged or cut off."""
    with path.open("rb") as file:
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise ConfigError(f"{path}: is cut off; take another backup")
            length, checksum = _HEAD.unpack(head)
            data = file.read(length) if length <= FRAME_BYTES_MAX else b""
            if len(data) != length or zlib.crc32(data) != checksum:
                raise ConfigError(f"{path}: is damaged; take another backup")
            if not length:
                return
            yield msgpack.unpackb(data, raw=False, strict_map_key=False)


def write_manifest(directory: Path, facts: dict[str, Any], files: dict[str, int]) -> None:
    """Declare the backup whole: `facts` of the deployment, and the rows of each file."""
    described = {
        name: {"rows": rows, "bytes": (directory / name).stat().st_size, "sha256": digest(directory / name)}
        for name, rows in files.items()
    }
    draft = directory / f"{MANIFEST}.new"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"format": FORMAT, **facts, "files": described}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / MANIFEST)


def read_manifest(directory: Path) -> dict[str, Any]:
    """What a backup says of itself; ConfigError when there is none that this version knows."""
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        version, _ = manifest["format"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: {type(error).__name__}; is this a whole backup?") from None
    if version != FORMAT:
        raise ConfigError(f"{path}: format {version}, this version knows {FORMAT}; use the one that wrote it")
    return manifest


def check(directory: Path) -> dict[str, Any]:
    """The manifest of a whole backup; ConfigError when a file is missing or is not what was written."""
    manifest = read_manifest(directory)
    for name, told in manifest["files"].items():
        one = directory / name
        if not one.is_file() or one.stat().st_size != told["bytes"] or digest(one) != told["sha256"]:
            raise ConfigError(f"{one}: is missing or not what was written; take another backup")
    return manifest


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            made.update(block)
    return made.hexdigest()
