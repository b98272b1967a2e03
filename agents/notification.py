"""NotificationService: from push tasks to the queue of notifications, and from there to the providers.

Run: ``faust -A agents.notification worker``.

Spec: §6 (offline).
"""

from typing import Any

from qim_streams.roles.notification import TASK_TOPIC, build_notification

app, _tasks = build_notification()


@app.agent(app.source_topic(TASK_TOPIC), concurrency=1)
async def notification(stream: Any) -> None:
    """Give every chunk of the task log to its partition's lane."""
    await _tasks.drain(stream)
