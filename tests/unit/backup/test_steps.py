"""Steps of a backup and a restore on logs and stores in memory: what is refused, and what ends up where."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qim_streams.archive import rocksdb_layout as layout
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.backup.ports import Entry, KeyRow, LogRow, Pair
from qim_streams.backup.restoring import BEGIN, Restoring
from qim_streams.backup.taking import CHANGES, MAPPING, OUTBOX, Shape, take
from qim_streams.errors import ConfigError
from qim_streams.ownership.log_fence import BARRIER_KEY, barrier_epoch
from qim_streams.records import MessageRecord, OutboxRecord, decode_outbox, record_key

SHAPE = Shape(1, 2, 1, 2)


def record(seq: int, body: bytes = b"x") -> tuple[bytes, bytes]:
    """Key and value of an Outbox record."""
    identity = seq.to_bytes(16, "big")
    message = MessageRecord(
        seq, 1, "acme", "team", identity, identity, "ann", 66, "d", f"m{seq}", 5, 99, 0, 0, body
    )
    return record_key("acme", "team"), OutboxRecord(message.encode(), 5, 0, None).encode()


class MemoryLogs:
    """`Logs` in memory: (begin, rows) per partition."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[int, list[Entry]]] = {}

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See the port."""
        begin, rows = self.kept.get((topic, partition), (0, []))
        return begin, begin + len(rows)

    async def rows(self, topic: str, partition: int, start: int) -> AsyncIterator[Sequence[LogRow]]:
        """See the port."""
        begin, rows = self.kept.get((topic, partition), (0, []))
        found = [(begin + at, key, value) for at, (key, value) in enumerate(rows) if begin + at >= start]
        if found:
            yield found

    async def append(self, topic: str, partition: int, rows: Sequence[Entry]) -> None:
        """See the port."""
        self.kept.setdefault((topic, partition), (0, []))[1].extend(rows)

    async def drop_below(self, topic: str, partition: int, offset: int) -> None:
        """See the port."""
        begin, rows = self.kept[topic, partition]
        self.kept[topic, partition] = (offset, rows[offset - begin :])


class MemoryHot:
    """`HotFamilies` in memory."""

    def __init__(self, rows: Sequence[KeyRow] = ()) -> None:
        self.rows = list(rows)

    async def dumps(self) -> AsyncIterator[Sequence[KeyRow]]:
        """See the port."""
        yield self.rows

    async def put(self, rows: Sequence[KeyRow]) -> None:
        """See the port."""
        self.rows += rows

    async def is_empty(self) -> bool:
        """See the port."""
        return not self.rows


class MemoryPairs:
    """`ArchivePairs` in memory: everything up to a watermark."""

    def __init__(self, watermark: int, messages: int) -> None:
        self.mark, self.count = watermark, messages

    async def watermark(self, partition: int) -> int:
        """See the port."""
        return self.mark

    async def pairs(self) -> AsyncIterator[Sequence[Pair]]:
        """See the port."""
        rows = [(layout.VERSION_KEY, layout.VERSION), (layout.fence_key(0), layout.encode_fence(5))]
        rows.append((layout.watermark_key(0), layout.encode_watermark(self.mark)))
        for seq in range(1, self.count + 1):
            message = decode_outbox(record(seq)[1]).message
            rows.append((layout.message_key("acme", "team", seq), message))
        yield rows


class NoPoison:
    """Nothing is poison here."""

    async def send(self, poison: object) -> None:
        """Fail."""
        raise AssertionError(poison)


async def opened(directory: Path) -> tuple[HistoryArchiver, Callable[[], Awaitable[None]]]:
    """An archiver on a directory."""
    archive = await RocksArchive.open(directory)
    return HistoryArchiver(OUTBOX, archive, NoPoison(), now_ms=lambda: 0), archive.close


async def source(directory: Path) -> Path:
    """A backup: three messages archived, two in the Outbox only."""
    logs = MemoryLogs()
    logs.kept[OUTBOX, 0] = (2, [record(seq) for seq in (3, 4, 5)])
    logs.kept[CHANGES[0], 0] = (0, [(b"a\0c\0", b"head"), (b"a\0c\0u", None)])
    logs.kept[CHANGES[1], 1] = (7, [(b"device", b"token")])
    await take(
        directory,
        SHAPE,
        logs,
        MemoryHot([(b"{t:a}:rules", 0, b"dump")]),
        MemoryPairs(2, 3),
        1,
        lambda _: None,
    )
    return directory


async def nothing() -> int:
    """No state of a user waits for the archive."""
    return 0


async def test_a_backup_that_is_restored_has_everything_and_begins_anew(tmp_path: Path) -> None:
    directory, logs, hot = await source(tmp_path / "b"), MemoryLogs(), MemoryHot()
    recovered: list[tuple[int, int]] = []

    async def recover(partition: int, left_out: int) -> int:
        recovered.append((partition, left_out))
        return 1

    async def carry() -> int:
        assert recovered, "states were carried before there was anything to join them to"
        recovered.append((-1, 0))
        return 1

    restoring = Restoring(
        directory, SHAPE, logs, hot, tmp_path / "archive", opened, recover, carry, lambda _: None
    )
    await restoring.run(77)
    archive = await RocksArchive.open(tmp_path / "archive")
    found = await archive.records([("acme", "team", seq) for seq in range(1, 7)])
    assert [row is not None for row in found] == [True] * 5 + [False]
    assert (await archive.watermark(0), await archive.fence(0)) == (BEGIN - 1, 0)
    await archive.close()
    assert await logs.bounds(OUTBOX, 0) == (BEGIN, BEGIN)
    assert logs.kept[CHANGES[0], 0][1] == [(b"a\0c\0", b"head"), (b"a\0c\0u", None)]
    assert logs.kept[CHANGES[1], 1][1] == [(b"device", b"token")]
    assert hot.rows == [(b"{t:a}:rules", 0, b"dump")]
    assert recovered == [(0, 77), (-1, 0)]


async def test_the_first_record_is_a_barrier(tmp_path: Path) -> None:
    """Until it is removed it must not be taken for a message."""
    logs = MemoryLogs()
    kept: list[Entry] = []

    async def note(topic: str, partition: int, offset: int) -> None:
        kept.extend(logs.kept[topic, partition][1])

    logs.drop_below = note  # type: ignore[method-assign]

    async def recover(partition: int, left_out: int) -> int:
        return 0

    directory = await source(tmp_path / "b")
    await Restoring(
        directory, SHAPE, logs, MemoryHot(), tmp_path / "archive", opened, recover, nothing, lambda _: None
    ).run()
    assert [barrier_epoch(*one) for one in kept] == [1]
    assert kept[0][0] == BARRIER_KEY


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda logs: logs.kept.update({(MAPPING, 0): (0, [(b"1", b"split")])}), "split"),
        (lambda logs: logs.kept.update({(OUTBOX, 0): (9, [record(9)])}), "in neither"),
    ],
    ids=["split", "gap"],
)
async def test_what_cannot_be_backed_up_is_said(tmp_path: Path, change: Any, reason: str) -> None:
    logs = MemoryLogs()
    change(logs)
    with pytest.raises(ConfigError, match=reason):
        await take(tmp_path / "b", SHAPE, logs, MemoryHot(), MemoryPairs(2, 3), 1, lambda _: None)
    assert not (tmp_path / "b" / "manifest.json").exists()


@pytest.mark.parametrize("full", ["log", "hot tier", "archive", "shape"])
async def test_nothing_is_written_into_what_is_not_empty(tmp_path: Path, full: str) -> None:
    directory, logs, hot, shape = await source(tmp_path / "b"), MemoryLogs(), MemoryHot(), SHAPE
    archive = tmp_path / "archive"
    if full == "log":
        logs.kept[CHANGES[0], 0] = (4, [(b"k", b"v")])
    elif full == "hot tier":
        hot.rows.append((b"{x}", 0, b""))
    elif full == "archive":
        archive.joinpath("x").mkdir(parents=True)
    else:
        shape = Shape(1, 4, 1, 2)
    before = (dict(logs.kept), list(hot.rows))

    async def recover(partition: int, left_out: int) -> int:
        raise AssertionError

    with pytest.raises(ConfigError, match=r"empty|MAILBOX_SHARDS"):
        await Restoring(directory, shape, logs, hot, archive, opened, recover, nothing, lambda _: None).run()
    assert (logs.kept, hot.rows) == before
