"""OtlpSink with the SDK of OpenTelemetry and a collector in this process; and without the SDK."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qim_streams.errors import ConfigError
from qim_streams.roles.spans import compose_spans
from qim_streams.settings import load_settings
from qim_streams.spans.otlp_sink import OtlpSink
from qim_streams.spans.rules import Place, Stage, parent_of, span_id_of, trace_id_of
from qim_streams.spans.service import MessageSpans
from qim_streams.testing.memory_spans import TickingClock
from tests.support.collector import Collector, decoded
from tests.support.waiting import eventually_sync

MESSAGE = bytes(range(16))


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="extra otel: sending of spans unproven")
    with Collector() as made:
        yield made


def sink_for(url: str) -> OtlpSink:
    return OtlpSink(url, role="writer", instance="node-1.0", version="9.9", headers={"x-key": "k1"})


def test_spans_arrive_as_they_were_told(collector: Collector) -> None:
    sink = sink_for(collector.url)
    sink.start()
    spans = MessageSpans(1.0, sink, TickingClock())
    began_ns = spans.now_ns()
    spans.note(Stage.SEND, began_ns, [("acme", MESSAGE)])
    spans.note(Stage.NOTIFY, began_ns, [("acme", MESSAGE)], Place(3, "t.1"), failed="busy", provider="fcm")
    sink.close(60)
    path, headers, body = collector.requests[0]
    assert (path, headers["x-key"]) == ("/v1/traces", "k1")
    send, notify = decoded(body)
    assert send.service == "qim-writer"
    assert {one.trace_id for one in (send, notify)} == {trace_id_of(MESSAGE)}
    assert (send.name, send.kind, send.parent_id) == ("send", "SERVER", b"")
    assert send.span_id == span_id_of(MESSAGE, Stage.SEND)
    assert notify.parent_id == parent_of(MESSAGE, Stage.NOTIFY, Place(3))
    assert (notify.kind, notify.failed) == ("CLIENT", "busy")
    assert notify.attributes["qim.provider"] == "fcm"
    assert notify.attributes["qim.mailbox_shard"] == 3
    assert (send.began_ns, send.ended_ns) == (began_ns, began_ns + 1_000_000)


def test_a_collector_that_refuses_costs_spans_and_nothing_else(collector: Collector) -> None:
    collector.refuses = 400
    sink = sink_for(collector.url)
    sink.start()
    spans = MessageSpans(1.0, sink, TickingClock())
    spans.note(Stage.SEND, 0, [("acme", MESSAGE)])
    sink.close(60)
    eventually_sync(lambda: len(collector.requests) == 1, 60, "the refusal")


def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    """The SDK alone would wait for it; here that is left to a thread that dies with the process."""
    pytest.importorskip("opentelemetry.exporter.otlp", reason="extra otel: the bounded end is unproven")
    sink = sink_for("http://127.0.0.1:1/v1/traces")
    sink.start()
    MessageSpans(1.0, sink, TickingClock()).note(Stage.SEND, 0, [("acme", MESSAGE)])
    sink.close(0.05)
    assert "spans-ending" in {thread.name for thread in threading.enumerate()}


def test_a_sink_that_was_never_started_closes() -> None:
    sink_for("http://127.0.0.1:1/v1/traces").close(1)


def test_without_the_packages_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"tracing_endpoint: .*qim-streams\[otel\].*QIM_TRACING_ENDPOINT"):
        sink_for("http://127.0.0.1:1/v1/traces").start()


def test_where_tracing_is_off_nothing_of_the_sdk_is_imported() -> None:
    """Of what makes and sends spans: redis-py looks for the SDK's metrics by itself."""
    script = (
        "import sys, qim_streams.roles.writer\n"
        "from qim_streams.roles.spans import compose_spans\n"
        "from qim_streams.settings import load_settings\n"
        "assert compose_spans(load_settings(tracing_endpoint=''), 'writer') is None\n"
        "ours = ('opentelemetry.sdk.trace', 'opentelemetry.exporter')\n"
        "print([one for one in sys.modules if one.startswith(ours)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


# -- settings


def test_off_is_the_default_and_means_nothing_at_all() -> None:
    assert compose_spans(load_settings(), "writer") is None


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="tracing_endpoint: must begin with http"):
        load_settings(tracing_endpoint="collector:4318")


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_that_is_no_share_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="QIM_TRACING_RATIO"):
        load_settings(tracing_ratio=ratio)


def test_headers_come_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\n\nx-team:  q \n")
    settings = load_settings(tracing_endpoint="http://c/v1/traces", tracing_headers_file=file)
    assert settings.tracing_headers() == {"Authorization": "Bearer a:b", "x-team": "q"}
    assert compose_spans(settings, "writer") is not None


@pytest.mark.parametrize("content", ["s3cret-without-a-name\n", "a b: c\n", ": c\n", "x:\n", "x" * 9_000])
def test_a_wrong_file_of_headers_is_named_and_not_shown(tmp_path: Any, content: str) -> None:
    file = tmp_path / "headers"
    file.write_text(content)
    settings = load_settings(tracing_endpoint="http://c/v1/traces", tracing_headers_file=file)
    with pytest.raises(ConfigError, match="tracing_headers_file: ") as refused:
        compose_spans(settings, "writer")
    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Any) -> None:
    settings = load_settings(tracing_endpoint="http://c/v1/traces", tracing_headers_file=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"tracing_headers_file: .*FileNotFoundError"):
        compose_spans(settings, "writer")
