"""Partitions that a worker gave up go to another one, and nothing else changes. Spec: §13."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.streaming.assignor import AvoidingAssignor
from qim_streams.streaming.avoidance import exchange, noted, read_notes

TOPICS = ("qim.dispatch.v1", "changelog")
WORKERS = ("a", "b", "c")
Owned = dict[str, set[int]]


def test_what_is_avoided_is_exchanged_one_for_one() -> None:
    owned = {"a": {0, 1}, "b": {2, 3}}
    assert exchange(owned, {"a": {1}}) == []
    assert owned == {"a": {0, 2}, "b": {1, 3}}


def test_who_has_fewest_gets_it() -> None:
    owned = {"a": {0, 1}, "b": {2, 3}, "c": {4}}
    assert exchange(owned, {"a": {1}}) == []
    assert owned == {"a": {0}, "b": {2, 3}, "c": {1, 4}}


def test_what_comes_back_is_not_avoided_either() -> None:
    owned = {"a": {0, 1}, "b": {2, 3}}
    assert exchange(owned, {"a": {1, 2}}) == []
    assert owned == {"a": {0, 3}, "b": {1, 2}}


def test_with_nobody_else_it_stays_and_is_named() -> None:
    owned = {"a": {0, 1}}
    assert exchange(owned, {"a": {1}}) == [("a", 1)]
    both = {"a": {0}, "b": {1}}
    assert exchange(both, {"a": {0}, "b": {0}}) == [("a", 0)]
    assert (owned, both) == ({"a": {0, 1}}, {"a": {0}, "b": {1}})


@st.composite
def groups(draw: st.DrawFn) -> tuple[Owned, Owned]:
    count = draw(st.integers(1, 12))
    owned: Owned = {worker: set() for worker in WORKERS[: draw(st.integers(1, 3))]}
    for partition in range(count):  # as evenly as a leader does it
        least = min(len(one) for one in owned.values())
        owned[draw(st.sampled_from([w for w in owned if len(owned[w]) == least]))].add(partition)
    partitions = st.sets(st.integers(0, count - 1))
    return owned, {worker: draw(partitions) for worker in owned}


@given(groups())
def test_every_partition_keeps_one_owner_and_shares_stay_even(found: tuple[Owned, Owned]) -> None:
    owned, avoided = found
    before = sorted(partition for one in owned.values() for partition in one)
    named = exchange(owned, avoided)
    assert sorted(partition for one in owned.values() for partition in one) == before
    for worker, partitions in owned.items():
        for partition in partitions & avoided[worker]:
            assert all(partition in one for one in avoided.values()), "another worker could have it"
            assert (worker, partition) in named
    if sum(map(len, avoided.values())) == 1:  # one stall: nobody has two more than anybody else
        sizes = [len(one) for one in owned.values()]
        assert max(sizes) - min(sizes) <= 2


def test_notes_travel_and_end() -> None:
    notes = noted({3: 100, 12: 200}) | {"qim.dispatch.v1": 0, "avoid:x": 900}
    assert read_notes(notes, 99) == {3, 12}
    assert read_notes(notes, 100) == {12}


# -- on Faust's assignor


class Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1, 2, 3}


def member(name: str, partitions: set[int], notes: dict[str, int]) -> ConsumerProtocolMemberMetadata:
    actives = {topic: sorted(partitions) for topic in TOPICS}
    assignment = ClientAssignment(actives=actives, standbys={topic: [] for topic in TOPICS})
    data = ClientMetadata(
        assignment=assignment, url=f"http://{name}", changelog_distribution={}, topic_groups=notes
    )
    return ConsumerProtocolMemberMetadata(AvoidingAssignor.version, list(TOPICS), data.dumps())


@pytest.fixture
def assignor(monkeypatch: pytest.MonkeyPatch) -> AvoidingAssignor:
    monkeypatch.setattr("qim_streams.streaming.assignor.time.time", lambda: 1_000.0)
    sensors = SimpleNamespace(
        on_assignment_start=lambda _: None,
        on_assignment_error=lambda *_: None,
        on_assignment_completed=lambda *_: None,
    )
    tables = SimpleNamespace(data={}, changelog_topics=set())
    app: Any = SimpleNamespace(
        tables=tables, sensors=sensors, tracer=None, avoided={2: 5_000, 3: 900},
        conf=SimpleNamespace(canonical_url="http://a"),
    )  # fmt: skip
    return AvoidingAssignor(app)


def handed_out(assignor: AvoidingAssignor, members: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
    answer = assignor.assign(Cluster(), members)  # type: ignore[arg-type]  # as much of one as is asked
    return {name: dict(one.assignment) for name, one in answer.items()}


def test_the_leader_gives_a_shard_to_another_worker(assignor: AvoidingAssignor) -> None:
    """All topics of the shard move together; sticky for the others."""
    members = {"a": member("a", {0, 1}, noted({1: 5_000})), "b": member("b", {2, 3}, {})}
    assert handed_out(assignor, members) == {
        "a": {key: [0, 2] for key in TOPICS},
        "b": {key: [1, 3] for key in TOPICS},
    }


def test_a_note_that_has_ended_moves_nothing(assignor: AvoidingAssignor) -> None:
    members = {"a": member("a", {0, 1}, noted({1: 999})), "b": member("b", {2, 3}, {})}
    assert handed_out(assignor, members)["a"] == {key: [0, 1] for key in TOPICS}


def test_a_shard_that_nobody_else_can_take_is_an_error(
    assignor: AvoidingAssignor, caplog: pytest.LogCaptureFixture
) -> None:
    members = {"a": member("a", {0, 1, 2, 3}, noted({1: 5_000}))}
    assert handed_out(assignor, members)["a"] == {key: [0, 1, 2, 3] for key in TOPICS}
    assert caplog.text.count("P1 partition 1 comes back to http://a") == 1


def test_a_member_tells_what_it_avoids(assignor: AvoidingAssignor) -> None:
    """Until then, and beside what every member tells."""
    told = ClientMetadata.loads(assignor.metadata(set(TOPICS)).user_data)
    assert dict(told.topic_groups) == {"avoid:2": 5_000}
    assert told.url == "http://a"
