"""Who is online: presence records, tombstones, sessions, and leases of gateways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from qim_streams.push.presence import DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import Presence, record_key
from tests.unit.push.world import cache, connection, holder, presence


def names(online: OnlineDevices, members: list[int] | BitMap, tenant: str = "acme") -> list[str]:
    return sorted(f"{one.user_id}/{one.device_id}" for one in online.among(tenant, members))


def test_devices_of_members_are_found() -> None:
    online, _ = cache()
    for user, device, number in (("ann", "phone", 1), ("ann", "web", 2), ("ben", "phone", 3)):
        assert online.apply(*presence(user, device, number)) is not None
    assert names(online, [1, 65]) == ["ann/phone", "ann/web", "ben/phone"]
    assert names(online, BitMap([65, 99])) == ["ben/phone"]
    assert names(online, [2]) == []
    assert names(online, [1], tenant="other") == []
    assert len(online) == 3


def test_a_tombstone_takes_the_device_only() -> None:
    online, _ = cache()
    online.apply(*presence("ann", "phone", 1))
    online.apply(*presence("ann", "web", 2))
    assert online.apply(record_key("acme", "ann", "phone"), None) is None
    assert names(online, [1]) == ["ann/web"]
    online.apply(record_key("acme", "ann", "web"), None)
    online.apply(record_key("acme", "ann", "web"), None)
    assert names(online, [1]) == names(online, BitMap([1])) == []
    assert len(online) == 0


def test_the_newer_session_wins_in_any_order() -> None:
    """C14: a late record of a session that was replaced does not bring it back."""
    online, _ = cache()
    online.apply(*presence("ann", "phone", 2, session=2))
    assert online.apply(*presence("ann", "phone", 1, session=1)) is None
    assert [one.connection_id for one in online.among("acme", [1])] == [connection(2)]
    newer = online.apply(*presence("ann", "phone", 3, session=3))
    assert newer is not None
    assert [one.connection_id for one in online.among("acme", [1])] == [connection(3)]


def test_a_repeated_record_announces_again() -> None:
    """The gateway repeats a presence that nobody answered."""
    online, epochs = cache()
    first = online.apply(*presence("ann", "phone", 1))
    assert online.apply(*presence("ann", "phone", 1)) == first
    assert len(online) == 1
    epochs.update(epochs.known(), [None])
    assert online.apply(*presence("ann", "phone", 1)) is None


def test_a_newer_lease_takes_all_devices_of_the_older_at_once() -> None:
    """A gateway that was killed: no tombstone came, its devices vanish with its lease."""
    online, epochs = cache()
    online.apply(*presence("ann", "phone", 1))
    online.apply(*presence("ben", "phone", 2, shard=1))
    epochs.update(epochs.known(), [holder(0, 2), holder(1, 1)])
    assert names(online, [1, 65]) == ["ben/phone"]
    assert online.purge() == 1
    assert len(online) == 1
    assert online.apply(*presence("ann", "phone", 1)) is None, "its old record is stale for good"
    assert online.apply(*presence("ann", "phone", 3, epoch=2)) is not None


def test_an_ended_lease_hides_its_devices_until_it_is_back() -> None:
    online, epochs = cache()
    online.apply(*presence("ann", "phone", 1))
    assert epochs.update(epochs.known(), [None]) == set()
    assert names(online, [1]) == []
    assert online.purge() == 0
    assert epochs.update(epochs.known(), [holder(0, 1)]) == {0}
    assert names(online, [1]) == ["ann/phone"]
    assert [one.device_id for one in online.live({0})] == ["phone"]
    assert online.live({1}) == []


def test_an_answer_older_than_a_record_changes_nothing() -> None:
    """A new gateway's first presence record may overtake the answer that its lease is free."""
    online, epochs = cache()
    online.apply(*presence("ann", "phone", 1))
    asked = epochs.known()
    online.apply(*presence("ben", "phone", 2, epoch=2))
    assert epochs.update(asked, [None]) == set()
    assert names(online, [1, 65]) == ["ben/phone"]
    epochs.update(epochs.known(), [holder(0, 1)])
    assert names(online, [1, 65]) == ["ben/phone"]


def test_a_record_under_a_dead_lease_is_kept_but_not_live() -> None:
    online, epochs = cache()
    online.apply(*presence("ann", "phone", 1))
    epochs.update(epochs.known(), [None])
    assert online.apply(*presence("ben", "phone", 2)) is None
    epochs.update(epochs.known(), [holder(0, 1)])
    assert names(online, [1, 65]) == ["ann/phone", "ben/phone"]


def test_memory_is_bounded() -> None:
    """P16: over the bound devices are not pushed to; they pull."""
    online, _ = cache(devices_max=1)
    assert online.apply(*presence("ann", "phone", 1)) is not None
    assert online.apply(*presence("ben", "phone", 2)) is None
    assert online.apply(*presence("ann", "phone", 3, session=2)) is not None, "a known device takes no room"
    online.apply(record_key("acme", "ann", "phone"), None)
    assert online.apply(*presence("ben", "phone", 2)) is not None
    budget = DeviceBudget(1)
    closed = OnlineDevices(EpochTable(), budget)
    closed.apply(*presence("ann", "phone", 1))
    closed.close()
    assert budget.take()


VALUE = Presence("acme", "ann", 1, "phone", 0, 1, 1, 1)
KEY = record_key("acme", "ann", "phone")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE.encode()),
        (b"acme\0ben\0phone", VALUE.encode()),
        (KEY, b"junk"),
        (KEY, VALUE._replace(ordinal=2**32).encode()),
        (KEY, VALUE._replace(connection_shard=-1).encode()),
        (b"acme\0a:b\0phone", VALUE._replace(user_id="a:b").encode()),
        (b"\xff\xfe", None),
        (b"only one part", None),
    ],
)
def test_malformed_records_are_passed_over(key: bytes | None, value: bytes | None) -> None:
    """I16: a record cannot name a device that its key does not."""
    online, _ = cache()
    assert online.apply(key, value) is None
    assert len(online) == 0


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben", "eve"]), st.sampled_from("ab"), st.integers(0, 3))))
def test_the_cache_is_the_fold_of_the_log(steps: list[tuple[str, str, int]]) -> None:
    """The last record of a key decides; session 0 stands for a tombstone."""
    online, _ = cache()
    last: dict[tuple[str, str], int] = {}
    for user, device, session in steps:
        if session == 0:
            online.apply(record_key("acme", user, device), None)
            last.pop((user, device), None)
        else:
            online.apply(*presence(user, device, session, session=session))
            last[user, device] = max(session, last.get((user, device), 0))
    found = online.among("acme", [1, 2, 65])
    assert {(one.user_id, one.device_id): one.session_epoch for one in found} == last
    assert sorted(online.among("acme", BitMap([1, 2, 65]))) == sorted(found)
