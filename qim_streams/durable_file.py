"""A small file that is replaced as a whole and is on disk when the call returns.

Invariants: a reader sees the old content or the new one, never a part; after `write_durably` returned the
new content survives a power loss. Blocking (two fsyncs, a few milliseconds): call it from a thread.
"""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Replace the content of `path` (mode 0600). OSError leaves the old content in place."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)
