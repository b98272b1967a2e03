"""A changelog table in memory that can crash: for tests and simulations.

What it keeps of `streaming.table.AckedTable`: local writes are visible at once and survive a kill; their
changelog records are durable only once `barrier` returned; another worker recovers from the changelog,
without local keys. Not modelled: a worker that comes back to an old disk after another one went on.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from qim_streams.mailbox.ports import Puts


class SortedBytes:
    """A sorted map of bytes; also the `LocalIndex` of a partition."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def __len__(self) -> int:
        return len(self._keys)

    def read(self, key: bytes) -> bytes | None:
        """The value, None when absent."""
        return self._values.get(key)

    def read_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`."""
        return [self._values.get(key) for key in keys]

    def write_batch(self, puts: Puts) -> None:
        """Write all; None deletes."""
        for key, value in puts.items():
            if key in self._values:
                if value is None:
                    del self._values[key]
                    del self._keys[bisect_left(self._keys, key)]
                else:
                    self._values[key] = value
            elif value is not None:
                self._values[key] = value
                insort(self._keys, key)

    def iterate(self, start_key: bytes = b"", *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start_key` (inclusive), in key order or against it, as of now."""
        if reverse:
            end = bisect_right(self._keys, start_key) if start_key else len(self._keys)
            keys = self._keys[:end][::-1]
        else:
            keys = self._keys[bisect_left(self._keys, start_key) :]
        return iter([(key, self._values[key]) for key in keys])

    def clear(self) -> None:
        """Delete everything."""
        self._values.clear()
        self._keys.clear()


Changelog = dict[int, list[tuple[bytes, bytes | None]]]


class _Partition:
    def __init__(self) -> None:
        self.sending: list[tuple[bytes, bytes | None]] = []
        self.values, self.local = SortedBytes(), SortedBytes()


class MemoryTable:
    """`ChangelogTable` without broker and disk. Workers share a `changelog`, never a disk."""

    def __init__(self, changelog: Changelog | None = None) -> None:
        self.changelog: Changelog = {} if changelog is None else changelog
        self._partitions: dict[int, _Partition] = {}

    def read(self, partition: int, key: bytes) -> bytes | None:
        """The value, None when absent."""
        return self._of(partition).values.read(key)

    def iterate(
        self, partition: int, start_key: bytes = b"", *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start_key` (inclusive), in key order or against it."""
        return self._of(partition).values.iterate(start_key, reverse=reverse)

    def local(self, partition: int) -> SortedBytes:
        """The partition's keys without changelog."""
        return self._of(partition).local

    def write_batch(self, partition: int, puts: Puts, local: Puts | None = None) -> None:
        """Write locally and queue the changelog records."""
        state = self._of(partition)
        state.values.write_batch(puts)
        state.local.write_batch(local or {})
        state.sending.extend(puts.items())

    async def barrier(self, partition: int) -> None:
        """Make what is queued durable."""
        state = self._of(partition)
        self.changelog.setdefault(partition, []).extend(state.sending)
        state.sending.clear()

    # -- what a test does to it

    def crash(self, partition: int, *, sent: int = 0) -> None:
        """The worker dies and its disk stays: the first `sent` queued records were appended, others not."""
        state = self._of(partition)
        self.changelog.setdefault(partition, []).extend(state.sending[:sent])
        state.sending.clear()

    def elsewhere(self) -> "MemoryTable":
        """The table as another worker, or a wiped disk, recovers it from the changelog."""
        return type(self)(self.changelog)

    def _of(self, partition: int) -> _Partition:
        if partition not in self._partitions:
            state = self._partitions[partition] = _Partition()
            for key, value in self.changelog.get(partition, ()):
                state.values.write_batch({key: value})
        return self._partitions[partition]
