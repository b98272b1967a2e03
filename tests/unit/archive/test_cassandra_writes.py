"""How writes are settled: what timed out is written again, the watermark comes last, and doubt is said.

The store behind is a fake that loses requests and answers; the real one is in ``tests/contract`` and
``tests/integration/archive``. Spec: §14.8; P11, I12.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unavailable, WriteTimeout

from qim_streams import failpoints
from qim_streams.archive import cassandra_archive as module
from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive.cassandra_archive import CassandraArchive
from qim_streams.archive.cassandra_session import CassandraOptions
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.errors import Outcome, StoreError, StoreUnavailable

BUCKET = 10


class Bound(NamedTuple):
    """A statement with its values."""

    text: str
    values: tuple[Any, ...]


class Prepared(NamedTuple):
    """A statement without values."""

    text: str

    def bind(self, values: Sequence[Any]) -> Bound:
        """With values."""
        return Bound(self.text, tuple(values))


class Cluster:
    """A session whose tables are dictionaries with write timestamps; `fate` says what a write meets."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self.rounds: list[int] = []
        self.order: list[str] = []
        self.fate = lambda number: "applied"
        self.number = 0

    async def execute(self, text: str, values: Sequence[object] = (), *, read: bool = False) -> list[Any]:
        """Only the layout is asked for like this."""
        assert "archive_layout" in text
        return [(schema.LAYOUT_VERSION, BUCKET)]

    async def prepare(self, texts: Sequence[str]) -> list[Prepared]:
        """As they are."""
        return [Prepared(text) for text in texts]

    async def run(self, statements: Sequence[Any], *, read: bool = False) -> list[Any]:
        """Apply each, or not, and answer, or not."""
        self.rounds.append(len(statements))
        return [self._meet(one) for one in statements]

    def _meet(self, statement: Any) -> Any:
        self.number += 1
        fate = self.fate(self.number)
        if fate in ("applied", "answer lost"):
            for one in statement if isinstance(statement, list) else [statement]:
                self._apply(one)
        errors: dict[str, Exception] = {
            "answer lost": WriteTimeout("late", write_type=0),
            "request lost": OperationTimedOut(),
            "refused": Unavailable("1 of 2"),
            "wrong": InvalidRequest("unconfigured table"),
        }
        return errors.get(fate, [])

    def _apply(self, one: Bound) -> None:
        table = one.text.split()[2]
        self.order.append(table)
        if table == "messages":
            key, stamp, value = (table, *one.values[:4]), one.values[5], one.values[4]
        elif table == "archive_watermarks":
            key, stamp, value = (table, one.values[0]), one.values[2], one.values[1]
        else:
            key, stamp, value = (table, *one.values), 1, None
        if stamp >= self.rows.get(key, (0, None))[0]:
            self.rows[key] = (stamp, value)

    def watermark(self) -> int:
        """Of partition 0, -1 for none."""
        return int(self.rows.get(("archive_watermarks", 0), (0, -1))[1])

    def messages(self) -> dict[int, bytes]:
        """Records by seq."""
        return {key[4]: value for key, (_, value) in self.rows.items() if key[0] == "messages"}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def archive(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> CassandraArchive:
    monkeypatch.setattr(module, "_batch", list)
    monkeypatch.setattr(module, "RETRY_FIRST_S", 0.001)
    made = CassandraArchive(CassandraOptions(("h",), 1, "qim"), settle_s=5.0, uniform=lambda: 0.0)
    monkeypatch.setattr(made, "_session", cluster)
    return made


def messages(first: int, last: int) -> list[ArchivedMessage]:
    """Messages of one conversation."""
    return [ArchivedMessage("t", "c", seq, b"record %d" % seq) for seq in range(first, last + 1)]


async def test_the_watermark_is_written_after_all_messages(
    archive: CassandraArchive, cluster: Cluster
) -> None:
    await archive.store(0, messages(1, 35), 34)
    assert cluster.order[-1] == "archive_watermarks"
    assert cluster.order.count("messages") == 35
    assert cluster.order.count("conversation_buckets") == 3, "bucket 0 is not listed"
    assert cluster.watermark() == 34
    await archive.store(0, messages(36, 39), 40)
    assert cluster.order.count("conversation_buckets") == 3, "once for each bucket and process"


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_lost_is_settled(archive: CassandraArchive, cluster: Cluster, seed: int) -> None:
    """T-R5, P11: requests and answers get lost; what is open is written again, what is settled is not."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    fates = ["applied"] * 4 + ["answer lost", "request lost", "refused"]
    cluster.fate = lambda number: rng.choice(fates)
    await archive.store(0, messages(1, 200), 199)
    assert cluster.messages() == {one.conversation_seq: one.record for one in messages(1, 200)}
    assert cluster.watermark() == 199
    rounds = cluster.rounds[: cluster.rounds.index(1)] if 1 in cluster.rounds else cluster.rounds
    assert rounds == sorted(rounds, reverse=True), "each round repeats only what is open"


async def test_doubt_that_lasts_is_said_and_moves_no_watermark(
    archive: CassandraArchive, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is UNKNOWN: some of it is there. The caller repeats, and then it is settled."""
    monkeypatch.setattr(archive, "_settle_s", 0.3)
    cluster.fate = lambda number: "answer lost"
    with pytest.raises(StoreUnavailable, match="not settled") as raised:
        await archive.store(0, messages(1, 5), 4)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert len(cluster.messages()) == 5
    assert cluster.watermark() == -1
    assert len(cluster.rounds) >= 2, "it was tried again"
    cluster.fate = lambda number: "applied"
    await archive.store(0, messages(1, 5), 4)
    assert cluster.watermark() == 4


async def test_what_will_never_work_is_not_repeated(archive: CassandraArchive, cluster: Cluster) -> None:
    cluster.fate = lambda number: "wrong"
    with pytest.raises(StoreError, match="qim archive init") as raised:
        await archive.store(0, messages(1, 5), 4)
    assert not isinstance(raised.value, StoreUnavailable)
    assert cluster.rounds == [1]


async def test_a_bucket_is_listed_again_if_the_call_failed(
    archive: CassandraArchive, cluster: Cluster
) -> None:
    """Otherwise its messages could never be found by a range."""
    cluster.fate = lambda number: "wrong"
    with pytest.raises(StoreError):
        await archive.store(0, messages(11, 12), 1)
    cluster.fate = lambda number: "applied"
    await archive.store(0, messages(11, 12), 1)
    assert cluster.order.count("conversation_buckets") == 1


@pytest.mark.parametrize("point", ["archiver.batch_partial", "archiver.batch_durable"])
async def test_a_failure_between_the_steps_publishes_nothing(
    archive: CassandraArchive, cluster: Cluster, point: str
) -> None:
    failpoints.arm(f"{point}:1:raise")
    try:
        with pytest.raises(failpoints.FailpointError):
            await archive.store(0, messages(1, 5), 4)
    finally:
        failpoints.arm("")
    assert cluster.watermark() == -1
    assert len(cluster.messages()) == 5
