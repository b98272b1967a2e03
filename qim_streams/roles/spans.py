"""Puts a role's spans together: None where tracing is off, which is what stages ask about.

Spec: §1.
"""

import time

import qim_streams
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings
from qim_streams.spans.otlp_sink import OtlpSink
from qim_streams.spans.service import MessageSpans


def compose_spans(settings: Settings, role: str) -> MessageSpans | None:
    """What the stages of `role` tell, None while `tracing_endpoint` is empty.

    Start it before the role serves and close it last. ConfigError for a file of headers that cannot be read.
    """
    if not settings.tracing_endpoint:
        return None
    try:
        headers = settings.tracing_headers()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    sink = OtlpSink(
        settings.tracing_endpoint,
        role=role,
        instance=f"{settings.node_id}.{settings.worker_slot}",
        version=qim_streams.__version__,
        headers=headers,
        ca_file=settings.tracing_tls_ca_file,
    )
    return MessageSpans(settings.tracing_ratio, sink, time.time_ns)
