"""OpenTelemetry spans of sampled messages: a trace per message, a span per stage, off unless switched on.

`rules` says what a message's trace and spans are called and which messages are sampled, `service` is what
stages tell, `ports` where spans go, `otlp_sink` sends them to a collector. Not to be confused with ``trace``,
which reads a message's way out of the logs and stores and needs nothing to be switched on.

Spec: §1.
"""
