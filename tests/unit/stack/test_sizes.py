"""How many partitions a stack's log is made with, and that it keeps them. Spec: §11."""

from pathlib import Path

import pytest

from qim_streams.stack.sizes import fresh_sizes, remember_sizes, sizes_to_use

TWO_CORES = {"outbox_partitions": 1, "mailbox_shards": 2}
EIGHT_CORES = {"outbox_partitions": 4, "mailbox_shards": 8}


@pytest.mark.parametrize(
    ("cores", "outboxes", "shards"), [(1, 1, 2), (2, 1, 2), (3, 1, 2), (4, 2, 4), (8, 4, 8), (128, 16, 32)]
)
def test_a_new_log_fits_the_cores(cores: int, outboxes: int, shards: int) -> None:
    assert fresh_sizes(cores, {}) == {"outbox_partitions": outboxes, "mailbox_shards": shards}


@pytest.mark.parametrize(
    ("workers", "outboxes", "shards"),
    [({"fanout": 3}, 3, 2), ({"mailbox": 4}, 1, 4), ({"qsession": 5}, 1, 5), ({"notification": 9}, 1, 2)],
)
def test_every_worker_gets_a_partition(workers: dict[str, int], outboxes: int, shards: int) -> None:
    assert fresh_sizes(2, workers) == {"outbox_partitions": outboxes, "mailbox_shards": shards}


def test_a_stack_keeps_what_its_log_was_made_with(tmp_path: Path) -> None:
    assert sizes_to_use(tmp_path, TWO_CORES, {}) == TWO_CORES
    remember_sizes(tmp_path, TWO_CORES)
    assert sizes_to_use(tmp_path, EIGHT_CORES, {}) == TWO_CORES


def test_a_log_of_before_has_what_was_the_default_then(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    assert sizes_to_use(tmp_path, TWO_CORES, {}) == {"outbox_partitions": 2, "mailbox_shards": 4}


def test_what_is_set_wins_and_is_kept(tmp_path: Path) -> None:
    chosen = sizes_to_use(tmp_path, TWO_CORES, {"mailbox_shards": 16})
    assert chosen == {"outbox_partitions": 1, "mailbox_shards": 16}
    remember_sizes(tmp_path, chosen)
    assert sizes_to_use(tmp_path, EIGHT_CORES, {}) == chosen
