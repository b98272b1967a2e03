"""PushTasks: one per registered device without presence; no cost where nobody is registered. H2 H4 G7."""

from collections.abc import Sequence

import pytest
from pyroaring import BitMap

from qim_streams.errors import LogAppendError
from qim_streams.log_ports import Outgoing
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.shards import Shard
from qim_streams.notification.records import PushDevice, PushSettings, decode_task
from qim_streams.push.offline import TASKS_PER_APPEND, OfflineTasks, RegisteredDevices
from qim_streams.push.presence import DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import record_key
from tests.unit.mailbox.dispatches import Record, dispatch
from tests.unit.push.test_stage import Follower
from tests.unit.push.world import presence

NOW = 2_000


def registered(user: str, ordinal: int, device: str, **changes: object) -> tuple[bytes, bytes]:
    """Key and value of a record of the device log."""
    one = PushDevice("acme", user, ordinal, device, "apns", "", "tok", 1)._replace(**changes)  # type: ignore[arg-type]  # fields of two types
    return record_key("acme", user, device), one.encode()


class Bench:
    """OfflineTasks of one shard, on a log that keeps what it gets."""

    def __init__(self, devices_max: int = 1_000) -> None:
        self.follower, self.appended, self.fail = Follower(), list[list[Outgoing]](), False
        self.tasks = OfflineTasks(
            "qim.push-task.v1",
            partitions=4,
            log_appender=self,
            follower=self.follower,
            age_max_ms=10_000,
            now_ms=lambda: NOW,
            devices_max=devices_max,
        )
        self.shard = Shard(0, 9, coverage=10, floor=10, pushed_through=10, buried_through=-1)
        epochs = EpochTable()
        self.online = OnlineDevices(epochs, DeviceBudget())

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """Keep or fail."""
        if self.fail:
            raise LogAppendError("armed")
        self.appended.append(list(records))
        return [0] * len(records)

    async def learn(self, *records: tuple[bytes, bytes | None]) -> None:
        """Records of the device log."""
        await self.tasks.on_devices(0, [Record(0, *one) for one in records])

    async def offer(self, *records: Addressed) -> None:
        """What the stage offers before it pushes."""
        await self.tasks.offer([(self.shard, records)], {0: self.online})

    @property
    def told(self) -> list[tuple[int, str, str]]:
        """(seq, user, device) of every task."""
        tasks = [decode_task(one.value or b"") for part in self.appended for one in part]
        return [(one.conversation_seq, one.user_id, one.device_id) for one in tasks]


async def test_each_registered_device_without_presence_gets_a_task() -> None:
    """H2 H4: two devices, one of them connected; the sender's own devices get none."""
    bench = Bench()
    bench.follower.log[0] = [
        Record(0, *registered("ben", 65, "phone")),
        Record(1, *registered("ben", 65, "tablet")),
        Record(2, *registered("ann", 1, "phone")),
    ]
    await bench.tasks.attach(0)
    bench.online.apply(*presence("ben", "phone", 1))
    await bench.offer(Addressed(11, dispatch(11), [1, 65]), Addressed(12, None, []))
    assert bench.told == [(11, "ben", "tablet")]
    (record,) = bench.appended[0]
    assert record.key == record_key("acme", "ben", "tablet")
    task = decode_task(record.value or b"")
    assert (task.ordinal, task.made_at, task.mailbox_shard) == (65, NOW, 0)


async def test_what_was_offered_before_old_and_edits_make_no_task() -> None:
    bench = Bench()
    await bench.tasks.attach(0)
    await bench.learn(registered("ben", 65, "phone"))
    edit = dispatch(12)._replace(kind=1)
    old = dispatch(13)._replace(committed_at=NOW - 10_001)
    await bench.offer(Addressed(10, dispatch(10), [65]), Addressed(12, edit, [65]), Addressed(13, old, [65]))
    assert bench.told == []


async def test_while_lanes_stand_apart_everything_offered_is_new() -> None:
    """A large record is pushed in parts, some of them behind the shard's own position."""
    bench = Bench()
    await bench.tasks.attach(0)
    await bench.learn(registered("ben", 65, "phone"))
    part = [Addressed(9, dispatch(9), [65])]
    await bench.tasks.offer([(bench.shard, part)], {0: bench.online}, lanes_apart=True)
    assert bench.told == [(9, "ben", "phone")]


async def test_removed_dead_and_unregistered_make_no_task_and_settings_are_no_device() -> None:
    bench = Bench()
    await bench.tasks.attach(0)
    key, value = registered("ben", 65, "phone")
    settings = PushSettings("acme", "ben").encode()
    await bench.learn(
        (key, value), registered("ben", 65, "tablet"), (record_key("acme", "ben", "."), settings)
    )
    await bench.learn((key, None), registered("ben", 65, "tablet", dead="Unregistered", token=""))
    await bench.learn((b"nonsense", b"x"), (key, b"\x07"))
    await bench.offer(Addressed(11, dispatch(11), [65]))
    assert bench.told == []
    await bench.learn((key, value))
    await bench.offer(Addressed(11, dispatch(11), BitMap([1, 65])))
    assert bench.told == [(11, "ben", "phone")]


async def test_nobody_registered_costs_nothing() -> None:
    """G7: members of a group of any size are not even looked at."""

    class Untouchable(list[int]):
        def __iter__(self) -> None:  # type: ignore[override]  # nobody may ask
            raise AssertionError("members were looked at")

    bench = Bench()
    await bench.tasks.attach(0)
    await bench.offer(Addressed(11, dispatch(11), Untouchable()))
    await bench.learn(registered("ben", 65, "phone"))
    await bench.learn((registered("ben", 65, "phone")[0], None))
    await bench.offer(Addressed(11, dispatch(11), Untouchable()))
    bench.tasks.detach(frozenset({0}))
    await bench.offer(Addressed(11, dispatch(11), Untouchable()))


async def test_a_large_group_is_appended_in_parts() -> None:
    """H4: 5,000 offline, every one gets its task; what is in memory at once is bounded."""
    bench = Bench(10_000)
    await bench.tasks.attach(0)
    count = 2 * TASKS_PER_APPEND + 1_000
    await bench.learn(*(registered(f"u{n}", 1_000 + n, "phone") for n in range(count)))
    members = BitMap([1, *range(1_000, 1_000 + count), *range(100_000, 200_000)])
    await bench.offer(Addressed(11, dispatch(11), members))
    assert [len(part) for part in bench.appended] == [TASKS_PER_APPEND, TASKS_PER_APPEND, 1_000]
    assert len(set(bench.told)) == count


async def test_the_bound_of_devices_holds() -> None:
    bench = Bench(devices_max=1)
    await bench.tasks.attach(0)
    await bench.learn(registered("ben", 65, "phone"), registered("ben", 65, "tablet"))
    await bench.offer(Addressed(11, dispatch(11), [65]))
    assert bench.told == [(11, "ben", "phone")]


async def test_a_log_that_refuses_is_the_callers_to_repeat() -> None:
    bench = Bench()
    await bench.tasks.attach(0)
    await bench.learn(registered("ben", 65, "phone"))
    bench.fail = True
    with pytest.raises(LogAppendError):
        await bench.offer(Addressed(11, dispatch(11), [65]))
    bench.fail = False
    await bench.offer(Addressed(11, dispatch(11), [65]))
    assert len(bench.told) == 1


def test_a_user_with_another_ordinal_is_found_under_it() -> None:
    """After a loss of the hot tier ordinals may have been given anew."""
    known = RegisteredDevices()
    known.apply(*registered("ben", 65, "phone"))
    known.apply(*registered("ben", 129, "phone"))
    assert known.among("acme", [65]) == []
    assert known.among("acme", [129]) == [(129, "ben", {"phone"})]
    assert known.among("other", [129]) == []
