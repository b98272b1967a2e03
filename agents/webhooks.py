"""Webhooks: what was committed, told to one endpoint of an application (QIM_WEBHOOK names it).

Run: ``QIM_WEBHOOK=crm faust -A agents.webhooks worker``.

Spec: §11.
"""

from typing import Any

from qim_streams.roles.webhook import build_webhook
from qim_streams.streaming.lanes import PartitionLanes

app, _sources = build_webhook()


def _add_agent(topic: str, lanes: PartitionLanes) -> None:
    @app.agent(app.source_topic(topic), concurrency=1, name=f"webhook-{topic}")
    async def webhook(stream: Any) -> None:
        await lanes.drain(stream)


for _topic, _lanes in _sources.items():
    _add_agent(_topic, _lanes)
