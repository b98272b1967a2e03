"""The Cassandra archive without a cluster: CQL, settings, errors, and how a run of statements is bounded."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteTimeout,
)
from cassandra.cluster import EXEC_PROFILE_DEFAULT, NoHostAvailable
from cassandra.policies import FallthroughRetryPolicy, NoSpeculativeExecutionPolicy
from cassandra.protocol import OverloadedErrorMessage, ServerError
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.archive import cassandra_schema as schema
from qim_streams.archive import cassandra_session
from qim_streams.archive.cassandra_archive import BATCH_BYTES_MAX, BATCH_ROWS_MAX, _parts
from qim_streams.archive.cassandra_session import (
    CassandraOptions,
    CassandraSession,
    _Run,
    make_cluster,
    translate,
)
from qim_streams.archive.opening import cassandra_options, open_archive_reader
from qim_streams.archive.ports import REVISION_MAX, ArchivedMessage
from qim_streams.errors import ConfigError, Outcome, Policy, StoreError, StoreUnavailable, policy_of
from qim_streams.settings import Settings, load_settings

SPRING_2006_US = 1_143_900_000_000_000  # microseconds
NOWHERE = CassandraOptions(("127.0.0.1",), 9, "qim", connect_timeout_s=0.2)


def test_replication_is_by_data_centre_or_the_same_everywhere() -> None:
    assert schema.replication({}, 3) == {"class": "NetworkTopologyStrategy", "replication_factor": "3"}
    assert schema.replication({"dc1": 3, "dc2": 2}, 1) == {
        "class": "NetworkTopologyStrategy",
        "dc1": "3",
        "dc2": "2",
    }
    for replicas in ({"dc'1": 3}, {"dc1": 0}, {"dc1": 11}):
        with pytest.raises(ConfigError, match="dc"):
            schema.replication(replicas, 1)


def test_every_statement_may_be_repeated_and_names_the_keyspace() -> None:
    statements = schema.create_statements("chat", schema.replication({}, 1))
    assert len(statements) == 6
    assert all("IF NOT EXISTS chat" in text for text in statements)
    assert "(id, layout, bucket_seqs) VALUES ('archive', 1, 77)" in schema.layout_statement("chat", 77)
    for keyspace in ("", "Chat", "9a", "a-b", "a" * 49, "a; DROP"):
        with pytest.raises(ConfigError, match="cassandra_keyspace"):
            schema.create_statements(keyspace, {})


def test_a_layout_that_is_missing_or_newer_is_named() -> None:
    assert schema.require_layout(schema.Layout(schema.LAYOUT_VERSION, 77), "qim") == 77
    with pytest.raises(ConfigError, match="qim archive init"):
        schema.require_layout(None, "qim")
    with pytest.raises(ConfigError, match="layout 9"):
        schema.require_layout(schema.Layout(9, 77), "qim")


@given(
    st.tuples(st.integers(0, REVISION_MAX), st.integers(0, 2**38 - 2)),
    st.tuples(st.integers(0, REVISION_MAX), st.integers(0, 2**38 - 2)),
)
def test_the_highest_revision_has_the_highest_stamp_and_in_it_the_first_record(
    a: tuple[int, int], b: tuple[int, int]
) -> None:
    stamps = [schema.message_stamp(*one) for one in (a, b)]
    assert all(1 <= stamp < SPRING_2006_US for stamp in stamps)
    assert [schema.revision_of_stamp(stamp) for stamp in stamps] == [a[0], b[0]]
    assert (stamps[0] > stamps[1]) == ((a[0], -a[1]) > (b[0], -b[1]))


def test_stamps_of_watermarks_grow_with_them() -> None:
    assert schema.watermark_stamp(0) == 1
    assert schema.watermark_stamp(8) > schema.watermark_stamp(7)


def test_batches_are_bounded_by_rows_and_bytes() -> None:
    small = [ArchivedMessage("t", "c", seq, b"x") for seq in range(1, 121)]
    assert [len(part) for part in _parts(small)] == [BATCH_ROWS_MAX, BATCH_ROWS_MAX, 20]
    large = [ArchivedMessage("t", "c", seq, b"x" * 100_000) for seq in range(1, 6)]
    parts = list(_parts(large))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert all(sum(len(one.record) for one in part) <= BATCH_BYTES_MAX for part in parts)
    huge = [ArchivedMessage("t", "c", 1, b"x" * (2 * BATCH_BYTES_MAX))]
    assert list(_parts(huge)) == [huge]
    assert [one for part in _parts(small) for one in part] == small


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (WriteTimeout("late", write_type=0), StoreUnavailable, Outcome.UNKNOWN),
        (ReadTimeout("late"), StoreUnavailable, Outcome.UNKNOWN),
        (OperationTimedOut(), StoreUnavailable, Outcome.UNKNOWN),
        (NoHostAvailable("none", {"h": OSError("refused")}), StoreUnavailable, Outcome.UNKNOWN),
        (ConnectionResetError(), StoreUnavailable, Outcome.UNKNOWN),
        (OverloadedErrorMessage(0x1001, "overloaded", None), StoreUnavailable, Outcome.UNKNOWN),
        (Unavailable("1 of 2"), StoreUnavailable, Outcome.NOT_APPLIED),
        (InvalidRequest("unconfigured table"), StoreError, Outcome.NOT_APPLIED),
        (ServerError(0, "bug", None), StoreError, Outcome.UNKNOWN),
    ],
)
def test_a_time_out_is_an_unknown_outcome_and_is_retried(
    error: Exception, kind: type[StoreError], outcome: Outcome
) -> None:
    ours = translate(error, "cassandra h:1")
    assert type(ours) is kind
    assert ours.outcome is outcome
    assert "cassandra h:1" in str(ours)
    assert policy_of(ours) is (Policy.RETRY if kind is StoreUnavailable else Policy.CRASH)


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailed("bad"),
        Unauthorized("no"),
        NoHostAvailable("none", {"h": AuthenticationFailed("bad")}),
    ],
)
def test_a_refused_login_names_the_variables(error: Exception) -> None:
    ours = translate(error, "cassandra h:1")
    assert isinstance(ours, ConfigError)
    assert "QIM_CASSANDRA_PASSWORD_FILE" in str(ours)


def test_every_option_that_matters_is_explicit(tmp_path: Path) -> None:
    """No retry and no second try behind our back; time-outs and consistency as set."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    options = CassandraOptions(
        ("127.0.0.1",), 9, "qim", consistency="EACH_QUORUM", user="qim", password_file=secret,
        request_timeout_s=3.5,
    )  # fmt: skip
    cluster = make_cluster(options)
    try:
        profiles = [cluster.profile_manager.profiles[name] for name in (EXEC_PROFILE_DEFAULT, "read")]
        assert [profile.consistency_level for profile in profiles] == [
            ConsistencyLevel.EACH_QUORUM,
            ConsistencyLevel.LOCAL_QUORUM,
        ]
        for profile in profiles:
            assert isinstance(profile.retry_policy, FallthroughRetryPolicy)
            assert isinstance(profile.speculative_execution_policy, NoSpeculativeExecutionPolicy)
            assert profile.request_timeout == 3.5
        assert cluster.auth_provider.password == "s3cret"
    finally:
        cluster.shutdown()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match="QIM_CASSANDRA_PASSWORD_FILE"):
        make_cluster(CassandraOptions(("h",), 9, "qim", user="qim", password_file=missing))
    with pytest.raises(ConfigError, match="QIM_CASSANDRA_TLS_CA_FILE"):
        make_cluster(CassandraOptions(("h",), 9, "qim", tls_ca_file=missing))


def test_settings_become_options_and_wrong_ones_are_named() -> None:
    settings = Settings(
        archive="cassandra", cassandra_hosts=" a , b,", cassandra_port=7, cassandra_request_timeout_ms=2_500
    )
    options = cassandra_options(settings)
    assert (options.hosts, options.port, options.request_timeout_s) == (("a", "b"), 7, 2.5)
    with pytest.raises(ConfigError, match="QIM_CASSANDRA_HOSTS"):
        cassandra_options(Settings(cassandra_hosts=" , "))
    for name, value in (
        ("cassandra_consistency", "ONE"),
        ("cassandra_keyspace", "No"),
        ("cassandra_user", "somebody"),
    ):
        with pytest.raises(ConfigError, match=f"(?i){name}"):
            load_settings(**{name: value})


async def test_a_cluster_that_is_away_is_unavailable_and_not_hammered() -> None:
    """T-R4: the lane's retries do not open a connection each."""
    session = CassandraSession(NOWHERE)
    with pytest.raises(StoreUnavailable) as first:
        await session.connect()
    with pytest.raises(StoreUnavailable) as second:
        await session.connect()
    assert second.value is first.value, "within a second the answer is the same one"
    await session.close()
    with pytest.raises(StoreError, match="closed"):
        await session.connect()


async def test_a_host_name_that_cannot_be_resolved_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is away is no reason to end."""

    def unresolved(options: CassandraOptions) -> None:
        raise UnresolvableContactPoints({})

    monkeypatch.setattr(cassandra_session, "make_cluster", unresolved)
    with pytest.raises(StoreUnavailable, match="UnresolvableContactPoints"):
        await CassandraSession(NOWHERE).connect()


async def test_a_reader_opens_nothing_before_a_read() -> None:
    reader = open_archive_reader(Settings(archive="cassandra", cassandra_port=9))
    await reader.close()


class Answer:
    """A response future of the driver that is answered from another thread."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.give: Callable[[], None] = lambda: None

    def add_callbacks(
        self, good: Callable[..., None], bad: Callable[..., None], *, callback_args: Any, errback_args: Any
    ) -> None:
        """Remember whom to tell."""
        fails = isinstance(self.value, Exception)
        self.give = lambda: (bad if fails else good)(self.value, *(errback_args if fails else callback_args))


class FakeSession:
    """A driver session: statements are their own answers."""

    def __init__(self) -> None:
        self.open: list[Answer] = []
        self.most = 0

    def execute_async(self, statement: object, execution_profile: object) -> Answer:
        """Send; one statement refuses at once."""
        if statement == "refused":
            raise RuntimeError("refused")
        self.open.append(Answer(statement))
        self.most = max(self.most, len(self.open))
        return self.open[-1]


async def test_statements_are_sent_in_a_window_and_answered_in_order() -> None:
    session = FakeSession()
    wanted: list[Any] = [[number] for number in range(40)]
    wanted[7], wanted[21], wanted[30] = OperationTimedOut(), "refused", None
    running = asyncio.create_task(_Run(session, wanted, None, 8).finish())
    while not running.done():
        await asyncio.sleep(0)
        ready, session.open = session.open, []
        thread = threading.Thread(target=lambda ready=ready: [one.give() for one in reversed(ready)])
        thread.start()
        thread.join()
    results = await running
    assert session.most == 8
    assert results[7] is wanted[7]
    assert isinstance(results[21], RuntimeError)
    assert results[30] == []
    others = [number for number in range(40) if number not in (7, 21, 30)]
    assert [results[number] for number in others] == [[number] for number in others]


async def test_an_empty_run_ends() -> None:
    assert await _Run(FakeSession(), [], None, 8).finish() == []
