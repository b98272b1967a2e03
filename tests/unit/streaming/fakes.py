"""Stand-ins for what the streaming units talk to."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faust.types import TP

from qim_streams.streaming.source import Chunk
from qim_streams.streaming.spec import AppSpec, SourceSpec


class Died(BaseException):
    """Raised where the process would have ended."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


@dataclass
class Record:
    """The part of a consumed record that the units read."""

    offset: int
    key: bytes | None = None
    value: bytes | None = b"v"


@dataclass
class Message:
    partition: int
    offset: int
    topic: str = "in"

    @property
    def tp(self) -> TP:
        return TP(self.topic, self.partition)


@dataclass
class Event:
    """A stream event around the chunks of a fetch."""

    value: tuple[Chunk, ...]
    message: Message

    def ack(self) -> bool:
        return True


def chunk(
    first: int,
    last: int,
    *,
    at: int | None = None,
    epoch: int = 1,
    proved: bool = False,
    partition: int = 0,
) -> Chunk:
    """A chunk of the records first to last (inclusive)."""
    records = [Record(offset, partition) for offset in range(first, last + 1)]
    return Chunk(partition, epoch, 7, first if at is None else at, proved, records)


def event(*chunks: Chunk) -> Event:
    """A stream event of the chunks of one fetch."""
    return Event(chunks, Message(chunks[-1].partition, chunks[-1].records[-1].offset))


def spec(**changes: Any) -> AppSpec:
    """A valid spec for units."""
    values: dict[str, Any] = {
        "role": "unit",
        "brokers": "127.0.0.1:1",
        "sources": (SourceSpec("in", 4),),
        "datadir": Path("/nonexistent/unit"),
        **changes,
    }
    return AppSpec(**values)


async def settle(condition: Callable[[], object], turns: int = 200) -> None:
    """Let the loop turn until `condition` holds; AssertionError after `turns` turns."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not settled")
