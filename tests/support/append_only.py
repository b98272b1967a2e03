"""What a loss of power can take from the append-only file of a Redis, and what it cannot.

A file that was written anew begins with a snapshot, which was on the disk before the file took its name: only
what was appended behind it may be missing. Redis refuses a file whose snapshot is cut.
"""

import re
from pathlib import Path
from typing import Final

SNAPSHOT: Final = b"REDIS"
_END = re.compile(rb"\xff[\s\S]{8}(?=\*\d{1,4}\r\n\$\d{1,4}\r\n)")  # end of the snapshot, checksum, a command


def written_file(data_dir: Path) -> Path:
    """The append-only file that a server in `data_dir` wrote to last."""
    return max(data_dir.rglob("*.aof"), key=lambda path: path.stat().st_mtime_ns)


def safe_bytes(path: Path) -> int:
    """Length of the part at the beginning that is on the disk for good; 0 without a snapshot."""
    content = path.read_bytes()
    if not content.startswith(SNAPSHOT):
        return 0
    found = _END.search(content)
    return len(content) if found is None else found.end()
