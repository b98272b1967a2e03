"""Taking a backup while everything runs.

1. *Marks and rooms* out of the hot tier (families that no log has).
2. *The archive*: a view of it, with its watermarks.
3. *The Outbox* from behind those watermarks: what the archive does not have yet.
4. *Logs of changes*: members, push devices. They come last, so that a conversation that has a message has
   its members.
5. The manifest makes it a backup.

What was acknowledged before it began is in it; what comes meanwhile may be, in part.

Invariants: nothing is changed; memory is bounded by a batch. What has to be so, or there is no backup: the
Outbox begins at or below what the archive lacks; shards were never split.

Spec: §14.8.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qim_streams import __version__
from qim_streams.backup.files import MANIFEST, Row, write_manifest, write_rows
from qim_streams.backup.ports import ArchivePairs, HotFamilies, Logs
from qim_streams.errors import ConfigError

OUTBOX: Final = "qim.outbox.v1"
MAPPING: Final = "qim.mapping.v1"
CHANGES: Final = ("qim.membership.v1", "qim.push-device.v1")
HOT_FILE: Final = "hot.rows"
ARCHIVE_FILE: Final = "archive.rows"

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """The partition counts of a deployment: a restore needs the same."""

    outbox_partitions: int
    mailbox_shards: int
    room_partitions: int
    dispatch_partitions: int

    def partitions(self, topic: str) -> int:
        """Of a topic that is in a backup."""
        return self.dispatch_partitions if topic == "qim.push-device.v1" else self.outbox_partitions

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "outbox_partitions": self.outbox_partitions,
            "mailbox_shards": self.mailbox_shards,
            "room_partitions": self.room_partitions,
            "dispatch_partitions": self.dispatch_partitions,
        }


def log_file(topic: str, partition: int) -> str:
    """The file of a partition's rows."""
    return f"{topic}-{partition:04}.rows"


async def take(
    directory: Path, shape: Shape, logs: Logs, hot: HotFamilies, archive: ArchivePairs, at_ms: int, tell: Tell
) -> dict[str, int]:
    """Write a backup into `directory`, which is empty or missing; the rows of each file.

    ConfigError: it cannot be taken, and why. StoreError: a store failed; remove the directory and repeat.
    """
    _make_empty(directory)
    if (await logs.bounds(MAPPING, 0))[1]:
        raise ConfigError("shards were split: such a deployment cannot be backed up this way yet")
    files = {HOT_FILE: await write_rows(directory / HOT_FILE, hot.dumps())}
    tell(f"hot tier: {files[HOT_FILE]} keys that no log has")
    watermarks = [await archive.watermark(number) for number in range(shape.outbox_partitions)]
    files[ARCHIVE_FILE] = await write_rows(directory / ARCHIVE_FILE, archive.pairs())
    tell(f"archive: {files[ARCHIVE_FILE]} rows")
    for number, watermark in enumerate(watermarks):
        await _require_joined(logs, number, watermark)
        name = log_file(OUTBOX, number)
        files[name] = await write_rows(directory / name, _rows(logs, OUTBOX, number, watermark + 1))
    for topic in CHANGES:
        for number in range(shape.partitions(topic)):
            name = log_file(topic, number)
            files[name] = await write_rows(directory / name, _rows(logs, topic, number, 0))
    tell(f"logs: {sum(files.values()) - files[HOT_FILE] - files[ARCHIVE_FILE]} records")
    facts = {"version": __version__, "at_ms": at_ms, **shape.facts(), "watermarks": watermarks}
    write_manifest(directory, facts, files)
    tell(f"{directory / MANIFEST}: the backup is whole")
    return files


def _make_empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(directory.iterdir()):
        raise ConfigError(f"{directory}: is not empty; name a directory for this backup alone")


async def _require_joined(logs: Logs, partition: int, watermark: int) -> None:
    begin, _ = await logs.bounds(OUTBOX, partition)
    if begin > watermark + 1:
        raise ConfigError(
            f"{OUTBOX}[{partition}] begins at {begin} and the archive ends at {watermark}: messages in "
            "between are in neither; see `qim repair status`"
        )


async def _rows(logs: Logs, topic: str, partition: int, start: int) -> AsyncIterator[Sequence[Row]]:
    async for batch in logs.rows(topic, partition, start):
        yield batch
