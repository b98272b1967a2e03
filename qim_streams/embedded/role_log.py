"""Keep the log file of a running process within a bound.

The process appends to the file by itself (nothing of ours sits between it and the disk), so the file
cannot be swapped under it: it is copied to `<name>.1` and cut to nothing. The process goes on at the new
end, because the file is opened for appending. What is written between copy and cut, less than a
millisecond's worth, may be lost; that is the price.
"""

import os
import shutil
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024


def bound_log(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Move the content to `<path>.1` when it is above `bytes_max`; True when it was."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(path.name + ".1")
    draft = path.with_name(path.name + ".2")
    shutil.copyfile(path, draft)
    os.truncate(path, 0)
    draft.chmod(0o600)
    draft.replace(older)
    return True
