"""Every private name of Faust, mode, aiokafka and RocksDB that the layer reaches into, with its shape.

These packages are pinned; when a pin moves, this test says first what no longer fits.
"""

import inspect
from typing import Any

import aiokafka
import faust
import pytest
import rocksdict
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from faust import streams
from faust.app.base import App, BootStrategy
from faust.sensors.monitor import Monitor
from faust.stores import rocksdb
from faust.tables.base import Collection
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport import consumer as base
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from mode.threads import QueueServiceThread

VERSIONS = {"faust": "0.15.3", "aiokafka": "0.14.0"}

SIGNATURES: list[tuple[Any, str, list[str]]] = [
    (driver.AIOKafkaConsumerThread, "_create_worker_consumer", ["self", "transport"]),
    (driver.AIOKafkaConsumerThread, "_seek_wait", ["self", "consumer", "partitions"]),
    (driver.AIOKafkaConsumerThread, "_commit", ["self", "offsets"]),
    (driver.AIOKafkaConsumerThread, "_ensure_consumer", ["self"]),
    (driver.AIOKafkaConsumerThread, "on_partitions_assigned", ["self", "assigned", "generation_id"]),
    (QueueServiceThread, "call_thread", ["self", "fun", "args", "kwargs"]),
    (driver.Consumer, "_new_consumer_thread", ["self"]),
    (driver.Consumer, "_to_message", ["self", "tp", "record"]),
    (base.Consumer, "getmany", ["self", "timeout"]),
    (base.Consumer, "_get_active_partitions", ["self"]),
    (base.Consumer, "pause_partitions", ["self", "tps"]),
    (base.Consumer, "resume_partitions", ["self", "tps"]),
    (base.Consumer, "resume_flow", ["self"]),
    (base.Consumer, "perform_seek", ["self"]),
    (base.Consumer, "seek_to_committed", ["self"]),
    (base.Consumer, "ack", ["self", "message"]),
    (base.Consumer, "force_commit", ["self", "topics", "start_new_transaction"]),
    (base.Consumer, "_commit", ["self", "offsets"]),
    (base.Consumer, "wait_first", ["self", "coros", "timeout"]),
    (base.Consumer, "_drain_messages", ["self", "fetcher"]),
    (base.Consumer, "on_partitions_revoked", ["self", "revoked"]),
    (base.Consumer, "on_stop", ["self"]),
    (base.Consumer, "verify_all_partitions_active", ["self"]),
    (App, "_new_transport", ["self"]),
    (App, "on_first_start", ["self"]),
    (App, "on_stop", ["self"]),
    (BootStrategy, "_should_enable_web", ["self"]),
    (Monitor, "on_send_error", ["self", "producer", "exc", "state"]),
    (faust.Worker, "_sentinel_task", ["self"]),
    (TableManager, "_update_channels", ["self"]),
    (TableManager, "on_start", ["self"]),
    (Recovery, "_set_recovery_started", ["self"]),
    (Recovery, "need_recovery", ["self"]),
    (Recovery, "active_remaining", ["self"]),
    (Recovery, "active_remaining_total", ["self"]),
    (Collection, "_new_store_by_url", ["self", "url"]),
    (Collection, "apply_changelog_batch", ["self", "batch"]),
    (rocksdb.Store, "_open_for_partition", ["self", "partition"]),
    (rocksdb.Store, "_db_for_partition", ["self", "partition"]),
    (rocksdb.Store, "revoke_partitions", ["self", "table", "tps"]),
    (rocksdb.Store, "set_persisted_offset", ["self", "tp", "offset"]),
    (rocksdb.Store, "partition_path", ["self", "partition"]),
    (rocksdb.RocksDBOptions, "as_options", ["self"]),
    (Fetcher, "fetched_records", ["self", "partitions", "timeout", "max_records"]),
    (aiokafka.AIOKafkaConsumer, "seek", ["self", "partition", "offset"]),
    (aiokafka.AIOKafkaConsumer, "pause", ["self", "partitions"]),
    (aiokafka.AIOKafkaConsumer, "resume", ["self", "partitions"]),
    (aiokafka.AIOKafkaConsumer, "commit", ["self", "offsets"]),
    (SubscriptionState, "fetch_context", ["self"]),
]

SOURCES: list[tuple[Any, list[str]]] = [
    # attributes set in a constructor: looked for in its text
    (
        aiokafka.AIOKafkaConsumer,
        ["_fetch_max_wait_ms", "_fetch_min_bytes", "_fetcher", "_closed", "_subscription"],
    ),
    (Fetcher, ["_prefetch_backoff", "_subscriptions", "_closed"]),
    (TopicPartitionState, ["_position"]),
    (base.Consumer, ["_unacked_messages", "_read_offset", "can_resume_flow", "flow_active"]),
    (rocksdb.Store, ["_dbs", "rocksdb_options"]),
    (Recovery, ["active_tps", "active_offsets", "active_highwaters", "completed"]),
    (TableManager, ["_recovery", "changelog_queue"]),
    (Conductor, ["_tp_to_callback_lock", "acks_enabled_for"]),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), SIGNATURES, ids=lambda value: str(value)[:60])
def test_a_method_we_override_or_call_has_the_known_signature(
    owner: Any, name: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


@pytest.mark.parametrize(("owner", "names"), SOURCES, ids=lambda value: str(value)[:60])
def test_an_attribute_we_touch_is_still_there(owner: Any, names: list[str]) -> None:
    text = inspect.getsource(owner)
    assert [name for name in names if name not in text] == []


def test_versions_are_the_ones_that_were_examined() -> None:
    assert faust.__version__ == VERSIONS["faust"]
    assert aiokafka.__version__ == VERSIONS["aiokafka"]


def test_the_compiled_stream_iterator_is_there() -> None:
    """The pure Python one acknowledges messages that it skips."""
    assert streams._CStreamIterator is not None


def test_the_driver_hooks_are_class_attributes() -> None:
    assert driver.Transport.Consumer is driver.Consumer
    assert App.BootStrategy is BootStrategy


def test_the_wrong_partition_of_a_batch_produce_is_still_wrong_or_unused() -> None:
    """We do not call `produce_batch`; see ``producer``."""
    from qim_streams.streaming import producer

    assert ".produce_batch(" not in inspect.getsource(producer)


def test_rocksdict_has_what_tables_need() -> None:
    assert {"get", "write", "iter", "close", "delete_range"} <= set(dir(rocksdict.Rdict))
    assert {"seek", "seek_for_prev", "seek_to_first", "seek_to_last", "next", "prev"} <= set(
        dir(rocksdict.RdictIter)
    )
