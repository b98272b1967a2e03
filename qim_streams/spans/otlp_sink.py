"""OtlpSink: spans to an OpenTelemetry collector by OTLP over HTTP, with the SDK of OpenTelemetry.

The SDK's own parts do the work: its tracer makes the spans (with ids that we give), its batch processor keeps
at most `QUEUE_MAX` of them and sends them from a thread of its own, its exporter repeats what a collector did
not take. A collector that is away costs spans and a line in the log, never a message. Options that matter are
given here; nothing of the SDK is registered globally.

The packages are those of the extra ``otel``; they are imported when tracing is switched on, not before.

Spec: §1.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qim_streams.errors import ConfigError
from qim_streams.spans.rules import Stage, StageSpan

QUEUE_MAX: Final = 8_192
BATCH_MAX: Final = 512
DELAY_MS: Final = 1_000  # how long a span waits for others at most
EXPORT_TIMEOUT_S: Final = 5.0  # of one batch, repeats included
_KINDS: Final = {
    Stage.SEND: "SERVER",
    Stage.COMMIT: "SERVER",
    Stage.APPEND: "PRODUCER",
    Stage.FANOUT: "CONSUMER",
    Stage.ARCHIVE: "CONSUMER",
    Stage.MAILBOX: "CONSUMER",
    Stage.PUSH: "PRODUCER",
    Stage.DELIVER: "CONSUMER",
    Stage.NOTIFY: "CLIENT",
}


class OtlpSink:
    """`ports.SpanSink`. `endpoint`: the whole address, with its path (``http://host:4318/v1/traces``)."""

    def __init__(
        self,
        endpoint: str,
        *,
        role: str,
        instance: str,
        version: str,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._endpoint, self._headers, self._ca_file = endpoint, dict(headers or {}), ca_file
        self._about = {
            "service.name": f"qim-{role}",
            "service.namespace": "qim",
            "service.instance.id": instance,
            "service.version": version,
        }
        self._provider: Any = None
        self._tracer: Any = None
        self._ids = _GivenIds()

    def start(self) -> None:
        """See the port."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise ConfigError(
                f"tracing_endpoint: is set, but {error.name} is not installed: "
                "pip install 'qim-streams[otel]', or unset QIM_TRACING_ENDPOINT"
            ) from None
        exporter = OTLPSpanExporter(
            endpoint=self._endpoint,
            headers=self._headers,
            certificate_file=None if self._ca_file is None else str(self._ca_file),
            timeout=EXPORT_TIMEOUT_S,
        )
        # Who is sampled was decided from the message_id; here everything goes.
        self._provider = TracerProvider(
            ALWAYS_ON, Resource.create(self._about), shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, QUEUE_MAX, DELAY_MS, BATCH_MAX, EXPORT_TIMEOUT_S * 1_000)
        )
        self._tracer = self._provider.get_tracer("qim_streams", self._about["service.version"])

    def emit(self, spans: Sequence[StageSpan]) -> None:
        """See the port."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        for one in spans:
            trace_id = int.from_bytes(one.trace_id, "big")
            self._ids.trace_id, self._ids.span_id = trace_id, int.from_bytes(one.span_id, "big")
            around = Context()  # empty: without it the tracer would look for a span of this thread
            if one.parent_id is not None:
                parent = trace.SpanContext(trace_id, int.from_bytes(one.parent_id, "big"), True, sampled)
                around = trace.set_span_in_context(trace.NonRecordingSpan(parent), around)
            span = self._tracer.start_span(
                one.stage.value,
                around,
                trace.SpanKind[_KINDS[one.stage]],
                one.attributes,
                start_time=one.began_ns,
            )
            if one.failed:
                span.set_status(trace.StatusCode.ERROR, one.failed)
            span.end(one.ended_ns)

    def close(self, timeout_s: float) -> None:
        """See the port."""
        if self._provider is None:
            return
        # The SDK waits half a minute for a collector that does not answer; a role that ends has not got it.
        ending = threading.Thread(target=self._provider.shutdown, name="spans-ending", daemon=True)
        ending.start()
        ending.join(timeout_s)


class _GivenIds:
    """The SDK's generator of ids (its methods are all that the SDK looks at): gives what was put into it."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        """The trace of the span that is being made."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """The span that is being made."""
        return self.span_id

    def is_trace_id_random(self) -> bool:
        """Yes: a hash is as even as chance."""
        return True
