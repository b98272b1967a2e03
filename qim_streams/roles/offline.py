"""Offline push on the mailbox stage's side, put together from settings; nothing where no provider is on.

Spec: §6 (offline).
"""

from typing import Final

from qim_streams.notification.registry import DEVICE_TOPIC
from qim_streams.notification.service import TASK_TOPIC
from qim_streams.push.offline import OfflineTasks
from qim_streams.push.presence_follower import PresenceFollower
from qim_streams.roles.log import StreamAppender
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.group_follower import GroupFollower
from qim_streams.streaming import topics
from qim_streams.streaming.producer import LogProducer

# What is new comes at once; the wait is for when there is nothing, which is nearly always.
FETCH_WAIT_MS: Final = 500


def compose_offline(
    settings: Settings, producer: LogProducer, name: str, mappings: Mappings
) -> OfflineTasks | None:
    """Who makes push tasks in a mailbox worker, None where push is switched off."""
    if not settings.push_providers():
        return None
    return OfflineTasks(
        TASK_TOPIC,
        partitions=topics.load().resolve_for(settings)[TASK_TOPIC].partitions,
        log_appender=StreamAppender(producer),
        follower=GroupFollower(
            PresenceFollower(
                settings.kafka, DEVICE_TOPIC, f"{name}-push-devices", fetch_wait_ms=FETCH_WAIT_MS
            ),
            mappings,
        ),
        age_max_ms=settings.notification_age_max_s * 1_000,
        now_ms=now_ms,
    )
