"""Where a message is, and when it got there: level by level, read from the logs and the stores.

* ``ports``: the log as a trace reads it.
* ``model``: what a trace says, as values and as JSON.
* ``rules``: recognising a message in the records of each log (pure).
* ``service``: `trace_message`, one bounded search per level.
* ``kafka_log``: the log port on Kafka; ``opening``: from settings to `TraceDeps`; ``text``: for people.

Spec: §1 (the five levels).
"""
