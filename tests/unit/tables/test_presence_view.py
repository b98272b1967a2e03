"""The web view of presence: devices of a shard or a user, page by page; what is not served. Spec: §6."""

from typing import Any

from qim_streams.push.presence import Device, DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import Presence
from tables.presence import answer


def online(users: int) -> OnlineDevices:
    """A shard with two devices of each user."""
    epochs = EpochTable()
    devices = OnlineDevices(epochs, DeviceBudget())
    for number in range(users):
        for device in ("phone", "tab"):
            record = Presence("acme", f"u{number}", number, device, 1, 5 << 32 | number, 100 + number, 7)
            devices.apply(f"acme\0u{number}\0{device}".encode(), record.encode())
    return devices


def ask(shards: dict[int, OnlineDevices], **fields: str) -> tuple[Any, int]:
    page = answer(shards, fields)
    return page.content, page.status


def test_all_devices_of_a_shard_in_pages() -> None:
    shards = {3: online(6)}
    seen, fields = [], {"partition": "3", "limit": "5"}
    while True:
        content, status = ask(shards, **fields)
        assert status == 200
        assert len(content["rows"]) <= 5
        seen += [(row["user_id"], row["device_id"]) for row in content["rows"]]
        if content["next"] is None:
            break
        fields |= {name: str(value) for name, value in content["next"].items()}
    assert sorted(seen) == [(f"u{n}", device) for n in range(6) for device in ("phone", "tab")]


def test_the_devices_of_one_user() -> None:
    content, _ = ask({3: online(6)}, partition="3", tenant="acme", ordinal="4")
    assert [(row["user_id"], row["device_id"], row["live"]) for row in content["rows"]] == [
        ("u4", "phone", True), ("u4", "tab", True),
    ]  # fmt: skip
    assert content["rows"][0]["connection_id"] == str(5 << 32 | 4)
    assert ask({3: online(6)}, partition="3", tenant="other", ordinal="4")[0]["rows"] == []


def test_devices_of_a_gateway_that_has_gone_are_not_live() -> None:
    epochs = EpochTable()
    devices = OnlineDevices(epochs, DeviceBudget())
    record = Presence("acme", "ann", 4, "phone", 1, 5 << 32, 100, 7)
    devices.apply(b"acme\0ann\0phone", record.encode())
    epochs.observe(Device("acme", "ben", 5, "p", 1, 6 << 32, 1))
    assert [row["live"] for row in ask({3: devices}, partition="3")[0]["rows"]] == [False]


def test_a_shard_of_another_worker_is_said_to_be_so() -> None:
    content, status = ask({3: online(1)}, partition="4")
    assert (status, content["served"]) == (404, [3])


def test_wrong_fields_are_named() -> None:
    shards = {3: online(1)}
    wrong: list[dict[str, str]] = [
        {},
        {"partition": "x"},
        {"partition": "3", "limit": "0"},
        {"partition": "3", "limit": "201"},
        {"partition": "3", "tenant": "acme"},
        {"partition": "3", "ordinal": "1"},
        {"partition": "3", "tenant": "a:b", "ordinal": "1"},
        {"partition": "3", "after": "-1"},
    ]
    for fields in wrong:
        content, status = ask(shards, **fields)
        assert status == 400, fields
        assert content["error"].split(":")[0].split(",")[0] in {"partition", "limit", "tenant", "after"}
