"""The stages as the console shows them: owners, health, and what does not answer. Spec: §11, §13."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from qim_streams.console.model import StageView
from qim_streams.console.ports import Answer, GroupView, Place, WorkerPage
from qim_streams.console.topology import Stage, Topology, readiness_url
from qim_streams.errors import StoreUnavailable
from qim_streams.ownership.ports import Holder

OUTBOX, DISPATCH = "outbox", "dispatch"
WRITER = Stage("writer", "Writer", "writer", (OUTBOX,), lease="ob")
GATEWAY = Stage("gateway", "Gateway", "gateway", ("push",), lease="cs", idle_ok=True)
MAILBOX = Stage("mailbox", "Mailbox", "mailbox-node", (DISPATCH,), group="qim-mailbox-node", lease="s")


class World:
    """Logs, groups, leases and processes in memory."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log_ends = {OUTBOX: [10, 20], DISPATCH: [5, 5], "push": [0, 0]}
        self.group = GroupView(
            "Stable", {(DISPATCH, 0): 5, (DISPATCH, 1): 5}, {(DISPATCH, 0): "m-0", (DISPATCH, 1): "m-0"}
        )
        self.held = {"ob:0": "w:1", "ob:1": "w:1", "cs:1": "ws://g:2/ws", "s:0": "m", "s:1": "m"}
        self.answers: dict[str, Answer] = {}
        self.workers: list[WorkerPage] = []
        self.failure: Exception | None = None
        self.looks = 0
        self.urls: list[str] = []

    async def ends(self, topics: Sequence[str]) -> dict[str, list[int]]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return {topic: self.log_ends[topic] for topic in topics}

    async def groups(self, names: Mapping[str, Sequence[Place]]) -> dict[str, GroupView]:
        return dict.fromkeys(names, self.group)

    async def holders(self, resources: list[str]) -> list[Holder | None]:
        return [
            Holder(one, f"node-of-{self.held[one]}", 1, self.held[one], 7, 900) if one in self.held else None
            for one in resources
        ]

    async def get(self, url: str, fields: Mapping[str, str] | None = None) -> Answer:
        self.urls.append(url)
        return self.answers.get(url, Answer(url, 200, {"ready": True, "reasons": []}))

    async def worker_pages(self) -> list[WorkerPage]:
        return self.workers

    def topology(self, *stages: Stage) -> Topology:
        return Topology(
            stages, self, self.holders, self, self.worker_pages,
            behind_max_s=60.0, clock=lambda: self.now_s, now_ms=lambda: int(self.now_s * 1000),
        )  # fmt: skip


async def seen(world: World, *stages: Stage) -> list[StageView]:
    """The stages after two looks, two seconds apart."""
    topology = world.topology(*stages)
    await topology.read()
    world.now_s += 2
    return (await topology.read()).stages


async def test_all_is_well() -> None:
    gateway, writer, mailbox = await seen(World(), GATEWAY, WRITER, MAILBOX)
    assert [one.health for one in (gateway, writer, mailbox)] == ["ok", "ok", "ok"]
    assert [one.owner for one in mailbox.partitions] == ["m-0", "m-0"]
    assert [one.epoch for one in mailbox.partitions] == [7, 7]
    assert (mailbox.lag_records, mailbox.lag_s) == (0, 0.0)
    assert [(one.address, one.ready, one.partitions) for one in writer.workers] == [("w:1", True, 2)]


async def test_a_gateway_less_than_there_is_room_for_is_no_fault() -> None:
    (gateway,) = await seen(World(), GATEWAY)
    assert [(one.owner is None, one.health) for one in gateway.partitions] == [(True, "off"), (False, "ok")]


async def test_a_partition_without_a_writer_is_a_fault() -> None:
    world = World()
    del world.held["ob:1"]
    (writer,) = await seen(world, WRITER)
    assert writer.health == "bad"
    assert writer.reasons == ["outbox[1]: nobody holds its lease"]


async def test_lag_grows_older_while_nobody_works() -> None:
    world = World()
    topology = world.topology(MAILBOX)
    await topology.read()
    world.log_ends[DISPATCH] = [5, 45]
    for _ in range(8):
        world.now_s += 10
        view = await topology.read()
    (mailbox,) = view.stages
    assert (mailbox.health, mailbox.lag_records, mailbox.lag_s) == ("bad", 40, 70.0)
    assert mailbox.partitions[0].health == "ok"


async def test_no_process_at_all_names_the_one_to_start() -> None:
    world = World()
    world.group = GroupView("Empty", {(DISPATCH, 0): 5, (DISPATCH, 1): 5}, {})
    (mailbox,) = await seen(world, MAILBOX)
    assert mailbox.health == "bad"
    assert mailbox.reasons == ["no process of it runs: start `mailbox-node`"]


async def test_a_process_that_is_not_ready_says_why() -> None:
    world = World()
    world.answers["http://w:1/readyz"] = Answer("", 503, {"ready": False, "reasons": ["no redis", 7]})
    (writer,) = await seen(world, WRITER)
    assert writer.health == "bad"
    assert writer.reasons == ["node-of-w:1: no redis"]


async def test_a_process_that_does_not_answer_is_named_and_not_judged() -> None:
    world = World()
    world.answers["http://w:1/readyz"] = Answer("", 0, problem="cannot be reached")
    (writer,) = await seen(world, WRITER)
    assert [(one.ready, one.reasons) for one in writer.workers] == [
        (None, ["does not answer: cannot be reached"])
    ]


async def test_web_views_name_the_workers_where_they_are_open() -> None:
    world = World()
    world.workers = [
        WorkerPage("http://h:1", "mailbox-node", False, ["tables are read back"], {DISPATCH: [0, 1]}),
        WorkerPage("http://h:2", "archiver", True, [], {OUTBOX: [0]}),
        WorkerPage("http://h:3", None, None, ["does not answer: gone"], problem="gone"),
    ]
    (mailbox,) = await seen(world, MAILBOX)
    assert [(one.name, one.partitions) for one in mailbox.workers] == [("h:1", 2)]
    assert mailbox.reasons == ["h:1: tables are read back"]


async def test_a_broker_that_does_not_answer_makes_nothing_look_well() -> None:
    world = World()
    world.failure = StoreUnavailable("the broker at x: refused")
    topology = world.topology(WRITER, MAILBOX)
    view = await topology.read()
    assert {one.health for one in view.stages} == {"unknown"}
    assert view.problems == ["broker: the broker at x: refused"]


async def test_many_who_look_cost_one_look() -> None:
    world = World()
    topology = world.topology(WRITER)
    await asyncio.gather(*(topology.read() for _ in range(20)))
    assert world.looks == 1
    world.now_s += 1
    await topology.read()
    assert world.looks == 2


def test_where_readiness_is_asked() -> None:
    asked: list[tuple[str, bool, Any]] = [
        ("10.0.0.1:77", False, "http://10.0.0.1:77/readyz"),
        ("10.0.0.1:77", True, "https://10.0.0.1:77/readyz"),
        ("wss://chat.example:443/ws", False, "https://chat.example:443/readyz"),
        ("ws://127.0.0.1:8080/ws", True, "http://127.0.0.1:8080/readyz"),
    ]
    assert [readiness_url(address, secure=secure) for address, secure, _ in asked] == [
        url for _, _, url in asked
    ]
