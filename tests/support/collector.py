"""What an OpenTelemetry collector gets, read again: OTLP over HTTP, spans only.

`decoded` reads a request, for which it needs the extra ``otel``; `Collector` is a server that keeps all.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class ReceivedSpan(NamedTuple):
    """A span as it came. `service`: of its process; `parent_id` is empty for a root; times in ns."""

    service: str
    name: str
    kind: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    failed: str


def decoded(body: bytes) -> list[ReceivedSpan]:
    """The spans of an export request."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(body)
    return [span for part in request.resource_spans for span in _spans(part)]


def _spans(part: Any) -> Iterator[ReceivedSpan]:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    about = _values(part.resource.attributes)
    for scope in part.scope_spans:
        for one in scope.spans:
            yield ReceivedSpan(
                about["service.name"],
                one.name,
                Span.SpanKind.Name(one.kind).removeprefix("SPAN_KIND_"),
                one.trace_id,
                one.span_id,
                one.parent_span_id,
                one.start_time_unix_nano,
                one.end_time_unix_nano,
                _values(one.attributes),
                one.status.message,
            )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


class Collector:
    """A server on loopback in a thread of its own, as long as a ``with``. What is posted to `PATH` are spans.

    `refuses`: the status that everything is answered with, 0 for none. Other paths are answered 200, too.
    """

    PATH = "/v1/traces"

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.refuses = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self.url = self.base + self.PATH
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def spans(self, trace_id: bytes) -> list[ReceivedSpan]:
        """What came of one trace so far, each span as often as it came."""
        posted = [body for path, _, body in list(self.requests) if path == self.PATH]
        return [one for body in posted for one in decoded(body) if one.trace_id == trace_id]


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.requests.append((self.path, dict(self.headers), body))
            self.send_response(collector.refuses or 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    return Handler
