"""The embedded servers for real: records and keys survive stops, kills and moved ports; stacks do not meet;
nothing survives a killed supervisor. Spec: §14.3, §14.4 rest on what is proved here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis.backoff import NoBackoff
from redis.retry import Retry

from qim_streams.embedded.errors import PortInUseError, ServerStartError, StateDirLockedError
from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.ports import free_ports, is_free
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.embedded.stack import EmbeddedStack, read_stack
from qim_streams.embedded.status import RoleState, StackStatus, read_status
from qim_streams.embedded.tansu import EmbeddedTansu
from tests.support.append_only import written_file
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TOPIC = "embedded-test"

SUPERVISE = """
import asyncio, sys
from pathlib import Path
from qim_streams.embedded.roles import RoleSpec
from qim_streams.embedded.stack import EmbeddedStack
from qim_streams.embedded.supervisor import Supervisor
state = Path(sys.argv[1])
stack = EmbeddedStack(state, quick=True).prepare()
worker = RoleSpec("worker", (sys.executable, "-c", "import time; time.sleep(600)"), order=10)
async def main():
    return await Supervisor([*stack.server_roles(), worker], state).run()
try:
    sys.exit(asyncio.run(main()))
finally:
    stack.close()
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker for tests that only ask it something."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), quick=True) as server:
        yield server


def produce(brokers: str, value: bytes) -> int:
    """Append one record with acks=all to partition 0; its offset."""
    producer = Producer(
        {"bootstrap.servers": brokers, "acks": "all", "message.timeout.ms": 20_000, "log_level": 0}
    )
    offsets: list[int] = []
    producer.produce(
        TOPIC, value, partition=0, on_delivery=lambda error, record: offsets.append(record.offset())
    )
    assert producer.flush(30) == 0
    return offsets[0]


def consume(brokers: str, count: int) -> list[bytes]:
    """The first `count` values of partition 0."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "reader", "log_level": 0})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            record = consumer.poll(0.2)
            if record is not None and record.error() is None:
                values.append(record.value())
        return values
    finally:
        consumer.close()


def create_topic(brokers: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    for future in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        future.result(30)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_kafka_keeps_records_over_stop_kill_and_new_ports(tmp_path: Path) -> None:
    server = EmbeddedKafka(tmp_path / "kafka", quick=True)
    with server:
        port = server.port
        create_topic(server.bootstrap)
        assert produce(server.bootstrap, b"one") == 0
        server.restart()
        assert server.port == port
        assert produce(server.bootstrap, b"two") == 1
        server.restart(kill=True)
        assert server.port == port
        assert produce(server.bootstrap, b"three") == 2
    assert server.pid is None
    with EmbeddedKafka(tmp_path / "kafka", port=free_ports(1)[0], quick=True) as moved:
        assert moved.port != port
        assert consume(moved.bootstrap, 3) == [b"one", b"two", b"three"]


def test_kafka_does_not_create_topics_by_itself(kafka: EmbeddedKafka) -> None:
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "allow.auto.create.topics": True,
        "topic.metadata.propagation.max.ms": 100,
        "log_level": 0,
    }
    producer, errors = Producer(settings), []
    producer.produce("never-made", b"x", on_delivery=lambda error, record: errors.append(error))
    assert producer.flush(20) == 0
    assert [error.code() for error in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics
    assert "never-made" not in topics


async def test_kafka_paused_and_restarted_without_blocking_the_loop(tmp_path: Path) -> None:
    server = await EmbeddedKafka(tmp_path / "kafka", quick=True).start_async()
    try:
        server.pause()
        assert not server.is_ready()
        server.resume()
        assert (await server.restart_async(kill=True)).is_ready()
    finally:
        await server.stop_async()
    assert server.pid is None


def test_a_data_directory_has_one_server(kafka: EmbeddedKafka) -> None:
    with pytest.raises(StateDirLockedError, match=rf"in use by pid {os.getpid()}; stop that kafka"):
        EmbeddedKafka(kafka.data_dir).start()
    assert kafka.is_ready()


def test_a_taken_port_is_named(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    with pytest.raises(PortInUseError, match=f"kafka_port: port {kafka.port}"):
        EmbeddedKafka(tmp_path / "other", port=kafka.port).start()


@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_redis_keeps_keys_over_stop_and_kill(tmp_path: Path, appendfsync: str) -> None:
    server = EmbeddedRedis(tmp_path / "redis", appendfsync=appendfsync)  # type: ignore[arg-type]
    with server:
        url = server.url
        client = redis.Redis.from_url(url, decode_responses=True)
        for expected, kill in ((1, False), (2, True)):
            assert client.incr("seq") == expected
            server.restart(kill=kill)
            assert server.url == url
        assert client.get("seq") == "2"
        assert client.config_get("appendfsync") == {"appendfsync": appendfsync}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with EmbeddedRedis(tmp_path / "redis") as again:
        assert redis.Redis.from_url(again.url, decode_responses=True).get("seq") == "2"


def test_behind_a_torn_script_nothing_is_lost(tmp_path: Path) -> None:
    """D4: after a loss of power Redis cuts its file inside the script's transaction, and would take all that
    is written behind it for a part of that, at the next start."""
    script = "for n = 1, 50 do redis.call('SET', 'half' .. n, string.rep('x', 100)) end"
    # `always`: with `everysec` writes wait in the process while a sync is under way, and a kill takes them.
    server = EmbeddedRedis(tmp_path / "redis", appendfsync="always", progress=lambda _: None).start()
    try:
        client = redis.Redis.from_url(server.url)
        client.set("kept", "1")
        client.eval(script, 0)
        server.kill()
        file = written_file(server.data_dir)
        with file.open("r+b") as stream:
            stream.truncate(file.stat().st_size - 2_000)
        for value in (1, 2, 3, 4):
            server.start()
            client = redis.Redis.from_url(server.url)
            assert (client.get("kept"), client.keys("half*")) == (b"%d" % value, [])
            client.set("kept", value + 1)
            server.kill()
    finally:
        server.stop()


def test_redis_asks_for_its_password_and_never_shows_it(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()
        password = (server.data_dir / "password").read_text()
        assert password in server.url
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert password not in Path(f"/proc/{server.pid}/environ").read_text()
        assert password not in server.log_path.read_text()
        readable_by_others = [path for path in server.data_dir.rglob("*") if path.stat().st_mode & 0o077]
        assert readable_by_others == []


def test_a_redis_that_is_set_up_otherwise_is_not_accepted(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis") as server:
        assert server.check_ready()
        redis.Redis.from_url(server.url).config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ServerStartError, match="allkeys-lru"):
            server.check_ready()


def test_the_fallback_broker_works_and_says_what_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    with EmbeddedTansu(tmp_path / "tansu", progress=said.append) as server:
        assert any("nothing survives" in line for line in said)
        create_topic(server.bootstrap)
        produce(server.bootstrap, b"one")
        assert consume(server.bootstrap, 1) == [b"one"]


def test_two_stacks_side_by_side_and_a_third_refused(tmp_path: Path) -> None:
    with (
        EmbeddedStack(tmp_path / "a", quick=True) as first,
        EmbeddedStack(tmp_path / "b", quick=True) as second,
    ):
        for number, opened in enumerate((first, second)):
            create_topic(opened.brokers)
            produce(opened.brokers, str(number).encode())
            redis.Redis.from_url(opened.redis_url).set("stack", number)
        for number, opened in enumerate((first, second)):
            assert consume(opened.brokers, 1) == [str(number).encode()]
            assert redis.Redis.from_url(opened.redis_url).get("stack") == str(number).encode()
        with pytest.raises(StateDirLockedError, match=rf"in use by pid {os.getpid()}"):
            EmbeddedStack(tmp_path / "a").start()
        found = read_stack(tmp_path / "a")
        assert found is not None
        assert (found["brokers"], found["redis_url"]) == (first.brokers, first.redis_url)
        assert found["pids"] == {server.name: server.pid for server in first.servers}
        pids = [server.pid for opened in (first, second) for server in opened.servers]
    assert all(pid is not None and is_gone(pid) for pid in pids)


def supervise(state: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, str(state)], stdout=subprocess.DEVNULL)


def when_running(state: Path) -> StackStatus:
    def seen() -> StackStatus | None:
        status = read_status(state)
        return status if status is not None and status.alive and status.state == "running" else None

    found = eventually_sync(seen, within_s=60, what="the supervised stack runs")
    assert found is not None
    return found


def test_a_killed_supervisor_leaves_nobody_and_its_directory_can_be_used_again(tmp_path: Path) -> None:
    with supervise(tmp_path / "s") as supervisor:
        status = when_running(tmp_path / "s")
        assert status.pid == supervisor.pid
        pids = {role.name: role.pid for role in status.roles}
        assert set(pids) == {"redis", "kafka", "worker"}
        addresses = read_stack(tmp_path / "s")
        assert addresses is not None
        create_topic(addresses["brokers"])
        produce(addresses["brokers"], b"before the kill")
        supervisor.kill()
    for name, pid in pids.items():
        assert pid is not None
        eventually_sync(lambda pid=pid: is_gone(pid), what=f"{name} ends")
    stale = read_status(tmp_path / "s")
    assert stale is not None
    assert not stale.alive
    with EmbeddedStack(tmp_path / "s", quick=True) as again:
        assert consume(again.brokers, 1) == [b"before the kill"]


def test_a_killed_broker_comes_back_under_its_supervisor_and_sigterm_ends_all(tmp_path: Path) -> None:
    with supervise(tmp_path / "s") as supervisor:
        before = when_running(tmp_path / "s")
        broker = next(role for role in before.roles if role.name == "kafka")
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)

        def back() -> bool:
            status = read_status(tmp_path / "s")
            assert status is not None
            now = next(role for role in status.roles if role.name == "kafka")
            return now.state is RoleState.READY and now.pid != broker.pid and now.restarts == 1

        eventually_sync(back, within_s=30, what="the broker is back")
        pids = [role.pid for role in when_running(tmp_path / "s").roles]
        supervisor.terminate()
        assert supervisor.wait(60) == 0
    assert all(pid is not None and is_gone(pid) for pid in pids)
    assert json.loads((tmp_path / "s" / "status.json").read_text())["state"] == "stopped"
    assert all(is_free(port) for role in before.roles for port in role.ports.values())
