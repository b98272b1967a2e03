"""Windows of lanes: over by their own counts and times, and never ahead of what is written. Spec: §9."""

from random import Random

from qim_streams.placement import LANES
from qim_streams.sessions.lane_windows import GRAINS, LaneWindows, Taken
from tests.unit.sessions.test_tail_compactor import SHARD, TENANT, record

WINDOW_S = 5.0


def rows(taken: Taken) -> dict[tuple[int, str], int]:
    folded = taken.folded(64)
    return {(row.ordinal, row.conversation_id): row.activity for of in folded.rows.values() for row in of}


def test_a_lane_is_full_by_its_own_events() -> None:
    """512 of a lane, not of the worker: the others stay, and hold the checkpoint."""
    windows = LaneWindows(64, WINDOW_S, 512)
    assert not windows.add(SHARD, [record(0, 2), record(1, 3)], 0.0)
    others = [record(at, *range(4, LANES)) for at in range(2, 22)]
    assert not windows.add(SHARD, others, 0.0), "1,200 events of 60 lanes"
    mine = [record(at, 1, 65, 129, 193) for at in range(22, 150)]
    assert windows.add(SHARD, mine, 0.0)
    assert windows.next_due(0.0) == 0.0
    taken = windows.take(-WINDOW_S)
    assert list(taken.windows) == [(TENANT, 1)]
    assert len(rows(taken)) == 4
    assert windows.through() == {SHARD: -1}
    assert windows.events == 1_202


def test_lanes_are_due_at_different_times() -> None:
    """All lanes get something at once, again and again: none waits beyond a window, few go together."""
    windows, now_s, offset = LaneWindows(64, WINDOW_S, 512), 100.0, 0
    opened: dict[int, float] = {}
    largest = 0
    while now_s < 130.0:
        windows.add(SHARD, [record(offset, *range(LANES))], now_s)
        for lane in range(LANES):
            opened.setdefault(lane, now_s)
        offset += 1
        taken = windows.take(now_s)
        largest = max(largest, len(taken.windows) if now_s > 106 else 0)
        for _, lane in taken.windows:
            assert now_s - opened.pop(lane) <= WINDOW_S + 0.1
        now_s += 0.1
    assert 0 < largest <= 2 * LANES // GRAINS


def test_nothing_is_lost_whatever_is_taken_and_put_back() -> None:
    """Random feeds, takes and failures against one fold; `through` is below all that is not written."""
    for seed in range(40):
        chance = Random(seed)
        windows, written, wanted = LaneWindows(3, WINDOW_S, 9), dict[tuple[int, str], int](), {}
        where: dict[tuple[int, str], set[int]] = {}
        now_s, offset, wide = 0.0, 0, 0
        for _ in range(120):
            now_s += chance.random()
            ordinals = chance.sample(range(200), chance.randrange(1, 5))
            chat = f"c{chance.randrange(5)}"
            windows.add(SHARD, [record(offset, *ordinals, conversation=chat)], now_s)
            if len(ordinals) > 3:
                wide += 1
            else:
                for one in ordinals:
                    wanted[one, chat] = 100 + offset
                    where.setdefault((one, chat), set()).add(offset)
            offset += 1
            if chance.random() < 0.5:
                taken = windows.take(chance.choice((now_s, now_s + 1, None)))
                if chance.random() < 0.4:
                    windows.put_back(taken)
                    continue
                for key, activity in rows(taken).items():
                    written[key] = max(activity, written.get(key, 0))
                    where[key] = {at for at in where[key] if at > activity - 100}
                wide -= len(taken.wide)
            unwritten = [min(offsets) for offsets in where.values() if offsets]
            through = windows.through()[SHARD]
            assert through < min(unwritten, default=offset)
            assert wide or through == min(unwritten, default=offset) - 1
        taken = windows.take(None)
        for key, activity in rows(taken).items():
            written[key] = max(activity, written.get(key, 0))
        assert (written, windows.events) == (wanted, 0)
        assert windows.through() == {SHARD: offset - 1}
