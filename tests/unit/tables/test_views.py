"""Web views of tables: what a query means, paging, bounds, and rows for people."""

from typing import Any

import pytest

from qim_streams.fanout.progress import PAGE_KEY, OutboxPage
from qim_streams.mailbox.floors import Floor, floor_key
from qim_streams.mailbox.memory_table import MemoryTable
from qim_streams.mailbox.pages import OPEN_KEY, DoneDispatch, OpenProgress, Page, page_key
from tables import conversation_progress, dispatch_progress, lane_watermarks
from tables.views import SCANNED_MAX, BadQuery, TableView, answer, parse_query, read_rows


class Store:
    def __init__(self, served: set[int]) -> None:
        self.served = served

    def is_open(self, partition: int) -> bool:
        return partition in self.served


class Table(MemoryTable):
    """What a view needs of an AckedTable."""

    store = Store({1, 2})


def pages(first: int, count: int) -> dict[bytes, bytes | None]:
    made = [
        Page(n, n, 5, [DoneDispatch(n, n.to_bytes(16, "big"), b"d" * 8)]) for n in range(first, first + count)
    ]
    return {page_key(one.first, one.last): one.encode() for one in made}


@pytest.fixture
def table() -> Table:
    table = Table()
    table.write_batch(1, pages(0, 7) | {OPEN_KEY: OpenProgress(7, "7.20", {3: 0b111, 9: 1}).encode()})
    table.write_batch(2, pages(100, 2))
    return table


def ask(view: TableView, table: Any, **fields: str) -> tuple[Any, int]:
    page = answer(view, table, 4, fields)
    return page.content, page.status


def test_all_served_partitions_in_pages(table: Table) -> None:
    """Paging goes on where it stopped, over partitions, and ends."""
    seen, fields = [], {"limit": "3"}
    while True:
        content, status = ask(dispatch_progress.VIEW, table, **fields)
        assert status == 200
        assert len(content["rows"]) <= 3
        seen += [(row["partition"], row["kind"], row.get("last")) for row in content["rows"]]
        if content["next"] is None:
            break
        fields |= {"from": str(content["next"]["from"]), "after": content["next"]["after"]}
    assert seen == [
        (1, "open", None),
        *((1, "page", n) for n in range(7)),
        (2, "page", 100),
        (2, "page", 101),
    ]


def test_one_partition_from_an_offset(table: Table) -> None:
    content, _ = ask(dispatch_progress.VIEW, table, partition="1", offset="5")
    assert [row["last"] for row in content["rows"]] == [5, 6]
    assert content["served"] == [1, 2]


def test_rows_are_readable(table: Table) -> None:
    content, _ = ask(dispatch_progress.VIEW, table, partition="1", limit="2")
    opened, page = content["rows"]
    assert opened["chunks_done_by_lane"] == {"3": 3, "9": 1}
    assert (page["first"], page["last"], page["dispatches"], page["written_at_ms"]) == (0, 0, 1, 5)
    assert page["dispatch_ids"] == ["00" * 16]


def test_lanes_and_outbox_pages() -> None:
    table = Table()
    lanes = (7,) * 63 + (9,)
    table.write_batch(1, {floor_key(1): Floor(lanes, 4, 99).encode(), PAGE_KEY: OutboxPage(5, 6).encode()})
    content, _ = ask(lane_watermarks.VIEW, table)
    row = content["rows"][-1]
    assert (row["shard"], row["covered"], row["uniform"], row["epoch"]) == (1, 7, False, 4)
    assert row["lanes"] == list(lanes)
    assert conversation_progress.row(PAGE_KEY, OutboxPage(5, 6).encode()) == {
        "dispatched_through": 5,
        "at_ms": 6,
        "fence": 0,
    }


def test_a_partition_of_another_worker_is_said_to_be_so(table: Table) -> None:
    """§11 rule 3: never an empty success for what is not served here."""
    content, status = ask(dispatch_progress.VIEW, table, partition="3")
    assert status == 404
    assert content == {"error": "partition 3 is not served here", "served": [1, 2]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"partition": "-1"}, "partition"),
        ({"partition": "9" * 30}, "partition"),
        ({"partition": "\u0663"}, "partition"),
        ({"after": "00"}, "after"),
        ({"from": "1"}, "after"),
        ({"from": "1", "after": "zz"}, "after"),
    ],
)
def test_wrong_queries_are_named(table: Table, fields: dict[str, str], named: str) -> None:
    content, status = ask(dispatch_progress.VIEW, table, **fields)
    assert status == 400
    assert content["error"].startswith(named)


def test_offsets_only_where_there_are_some() -> None:
    with pytest.raises(BadQuery, match="has no offsets"):
        parse_query(lane_watermarks.VIEW, {"offset": "3"}, [1])


def test_a_damaged_row_is_shown_as_such(table: Table) -> None:
    table.write_batch(1, {page_key(0, 0): b"\x09junk"})
    content, status = ask(dispatch_progress.VIEW, table, partition="1")
    assert status == 200
    assert "version 9" in content["rows"][1]["error"]


def test_an_answer_reads_a_bounded_number_of_keys() -> None:
    """The worker's loop serves the page: keys that are not shown count, too."""
    table = Table()
    table.write_batch(1, {b"x%06d" % n: b"" for n in range(3 * SCANNED_MAX)})
    view = TableView("t", "", lambda key, value: {}, is_shown=lambda key: False)
    fields, rounds = {"partition": "1"}, 0
    while True:
        rows, after = read_rows(view, table, parse_query(view, fields, [1]))
        assert rows == []
        rounds += 1
        if after is None:
            break
        fields |= {"from": str(after["from"]), "after": after["after"]}
    assert rounds == 3
