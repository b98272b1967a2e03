"""Keys of access tokens that an issuer publishes: a JWKS document, asked for again and again.

`KeyBook` holds what was read last, `JwksKeeper` reads: at its start, every `refresh_s`, and when a token
names a key that is not there (the issuer may have a new one), then at most once in `AGAIN_S`, whoever asks.

Invariants:

* Fail closed: keys that could not be asked for again for `stale_max_s` are none. Then tokens are refused for
  now and not for good, since nobody knows what they are worth.
* A document counts whole: a key that is no longer in it is accepted no more. One that cannot be understood
  or has no key of ours changes nothing, and says so in the log.
* Bounds: bytes of a document, keys in it, time for an answer; one question at a time.

Spec: §7.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from qim_streams.errors import ConfigError

log = logging.getLogger(__name__)

DOCUMENT_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
AGAIN_S: Final = 10.0  # between two questions that unknown keys cause, and after a failure
ANSWER_S: Final = 5.0
SIGNED: Final = ("RS256", "ES256")
_KEY_TYPES: Final = {"RS256": "RSA", "ES256": "EC"}

Keys = dict[str, list[tuple[str | None, Any]]]
"""Algorithm -> [(key id or None, key)]."""


def read_document(data: bytes | str) -> Keys:
    """The RS256 and ES256 keys of a JWKS document; ValueError when there is none or it is too large."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"over {DOCUMENT_BYTES_MAX} bytes")
    try:
        entries = jwt.PyJWKSet.from_dict(json.loads(data)).keys
    except (ValueError, AttributeError, TypeError, RecursionError, jwt.PyJWTError) as error:
        raise ValueError(f"not a JWKS document ({type(error).__name__})") from None
    if len(entries) > KEYS_MAX:
        raise ValueError(f"over {KEYS_MAX} keys")
    keys: Keys = {name: [] for name in SIGNED}
    for entry in entries:
        if entry.algorithm_name in SIGNED and entry.key_type == _KEY_TYPES[entry.algorithm_name]:
            keys[entry.algorithm_name].append((entry.key_id, entry.key))
    if not any(keys.values()):
        raise ValueError("no RS256 or ES256 key; add one")
    return keys


class KeyBook:
    """The keys that were read last. `now_s` is a monotonic clock."""

    def __init__(self, stale_max_s: float, now_s: Callable[[], float]) -> None:
        self._stale_max_s, self._now_s = stale_max_s, now_s
        self._keys: Keys = {}
        self._read_s: float | None = None

    def take(self, keys: Keys) -> None:
        """These and no others, as of now."""
        self._keys, self._read_s = keys, self._now_s()

    @property
    def age_s(self) -> float | None:
        """For how long they were not read; None: they never were."""
        return None if self._read_s is None else self._now_s() - self._read_s

    def current(self) -> Keys | None:
        """The keys; None when they are too old to be believed, or were never read."""
        age_s = self.age_s
        return None if age_s is None or age_s > self._stale_max_s else self._keys

    def reasons(self) -> list[str]:
        """Why a gateway that needs them is not ready."""
        return [] if self.current() is not None else ["the keys of access tokens are not known"]


class JwksKeeper:
    """Keeps a book. `source` gives the document; any OSError or ValueError of it is a failure."""

    def __init__(self, book: KeyBook, source: Callable[[], Awaitable[bytes]], refresh_s: float) -> None:
        self._book, self._source, self._refresh_s = book, source, refresh_s
        self._wake = asyncio.Event()
        self._asked_s = -AGAIN_S
        self._read = asyncio.Condition()
        self._reads = 0

    async def run(self) -> None:
        """Read for ever."""
        loop = asyncio.get_running_loop()
        while True:
            good = await self._read_once()
            pause_s = self._refresh_s if good else min(self._refresh_s, AGAIN_S)
            self._wake.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._asked_s = loop.time()

    async def again(self) -> bool:
        """Ask for the keys now, if they were not just asked for; whether they were read then."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._asked_s < AGAIN_S and not self._wake.is_set():
            return False
        seen = self._reads
        self._wake.set()
        try:
            async with asyncio.timeout(ANSWER_S), self._read:
                await self._read.wait_for(lambda: self._reads > seen)
        except TimeoutError:
            return False
        return True

    async def _read_once(self) -> bool:
        try:
            self._book.take(read_document(await self._source()))
            good = True
        except (OSError, ValueError) as error:
            log.error("keys of access tokens were not read: %s: %s", type(error).__name__, error)
            good = False
        async with self._read:
            self._reads += good
            self._read.notify_all()
        return good


def file_source(path: Path) -> Callable[[], Awaitable[bytes]]:
    """The document of a file."""

    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)

    async def source() -> bytes:
        return await asyncio.to_thread(read)

    return source


def check_url(url: str) -> None:
    """ConfigError unless `url` is https, or http on this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or (parts.scheme != "https" and not local):
        raise ConfigError("jwt_jwks_url: must be https://host/path (http only on this machine)")
    if parts.username or parts.password:
        raise ConfigError("jwt_jwks_url: must not hold a password; keys that are published need none")
