"""The keys of the admin API: the one of the settings, role admin, and those of a file.

The file is read again when it changes, so a key is taken back without a restart. A file that cannot be read
or understood leaves nobody but the key of the settings: who was to be taken back must not stay.

Spec: §14.9.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from qim_streams.admin.rules import AdminKey, Role, find, parse_keys
from qim_streams.errors import ConfigError
from qim_streams.tls import file_mark

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024
LOOK_S: Final = 1.0
MAIN: Final = "admin"  # the name of the settings' key in the audit log


class AdminKeys:
    """`main` is the key of the settings."""

    def __init__(self, main: bytes, path: Path | None, now_s: Callable[[], float] = time.monotonic) -> None:
        """ConfigError when the file is of no use now."""
        self._main = AdminKey(MAIN, Role.ADMIN, hashlib.sha256(main).digest())
        self._path, self._now_s = path, now_s
        self._mark: object = None
        self._looked_s = now_s()
        self._keys = [self._main]
        if path is not None:
            try:
                self._read(path)
            except (OSError, ValueError) as error:
                raise ConfigError(f"admin_keys_file: {path}: {error}") from None

    def find(self, presented: str) -> AdminKey | None:
        """Whose key this is."""
        if self._path is not None and self._now_s() - self._looked_s >= LOOK_S:
            self._look(self._path)
        return find(self._keys, presented)

    def _look(self, path: Path) -> None:
        self._looked_s = self._now_s()
        if file_mark(path) == self._mark:
            return
        try:
            self._read(path)
            log.info("admin_keys_file: %d keys", len(self._keys))
        except (OSError, ValueError) as error:
            self._keys, self._mark = [self._main], None
            log.error("admin_keys_file: %s: %s; only the key of the settings holds", path, error)

    def _read(self, path: Path) -> None:
        mark = file_mark(path)
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"over {FILE_BYTES_MAX} bytes")
        keys = parse_keys(data.decode())
        if any(key.name == MAIN for key in keys):
            raise ValueError(f"{MAIN} is the name of the settings' key; use another")
        self._keys, self._mark = [self._main, *keys], mark
