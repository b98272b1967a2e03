"""What stands where after a loss, and what that means."""

import pytest

from qim_streams.repair.rules import OutboxStanding, RepairStatus, ShardStanding, Standing


def outbox(**more: int | bool) -> OutboxStanding:
    """A partition whose hot tier knows everything but has not been proved."""
    fields: dict[str, int | bool] = {
        "partition": 0, "begin": 0, "end": 100, "tail": 99, "change_end": 20, "change_tail": 19,
        "archived": 90, "proved": False,
    }  # fmt: skip
    return OutboxStanding(**(fields | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({}, Standing.UNPROVED),
        ({"proved": True, "tail": 60}, Standing.WHOLE),
        ({"tail": 60}, Standing.BEHIND),
        ({"change_tail": 3}, Standing.BEHIND),
        ({"tail": -1, "begin": 50}, Standing.BEHIND),
        ({"tail": -1, "begin": 50, "archived": 49}, Standing.BEHIND),
        ({"tail": -1, "begin": 50, "archived": 48}, Standing.LOST),
        ({"tail": -1, "begin": 50, "archived": 48, "accepted": 49}, Standing.LOST),
        ({"tail": -1, "begin": 50, "archived": 48, "accepted": 50}, Standing.BEHIND),
        ({"tail": -1, "begin": 50, "archived": -1, "proved": True}, Standing.WHOLE),
        ({"end": 0, "tail": -1, "change_end": 0, "change_tail": -1, "archived": -1}, Standing.UNPROVED),
    ],
)
def test_the_standing_of_an_outbox_partition(fields: dict[str, int], standing: Standing) -> None:
    assert outbox(**fields).standing is standing


def test_what_is_behind_is_counted_from_what_the_log_still_has() -> None:
    one = outbox(tail=-1, begin=50, archived=45, change_tail=-1)
    assert (one.records_behind, one.changes_behind, one.lost_records) == (50, 20, 4)


@pytest.mark.parametrize(
    ("watermark", "promised", "paged", "end", "standing"),
    [
        (-1, -1, -1, 0, Standing.WHOLE),
        (9, -1, 9, 10, Standing.WHOLE),
        (9, 9, 7, 30, Standing.WHOLE),
        (-1, -1, 9, 10, Standing.BEHIND),
        (5, 9, 5, 10, Standing.BEHIND),
        (9, 2**53 - 1, -1, 10, Standing.WHOLE),
        (-1, 2**53 - 1, -1, 10, Standing.BEHIND),
    ],
)
def test_the_standing_of_a_shard(
    watermark: int, promised: int, paged: int, end: int, standing: Standing
) -> None:
    """It is whole once W is where it was; a promise that nobody has made precise ends with the log."""
    assert ShardStanding(0, watermark, promised, paged, end, True).standing is standing


def test_everything_is_whole_only_with_every_part_of_it() -> None:
    whole, shard = outbox(proved=True), ShardStanding(0, 5, -1, 5, 6, True)
    assert RepairStatus([whole], [shard], 1).is_whole
    assert not RepairStatus([whole, outbox()], [shard], 1).is_whole
    assert not RepairStatus([whole], [shard, ShardStanding(1, 4, -1, 5, 6, True)], 1).is_whole
