"""Faust's assignor, but for what workers say that they cannot go on with (``avoidance``).

A member's notes travel in its group metadata, beside the numbers of its topics, where leaders of another
version do not look. The leader exchanges after Faust has handed out, so everything else is as before: sticky,
and the same for all topics of a partition.

Spec: §13 (lane_stall_failover).
"""

import logging
import time
from collections import defaultdict
from typing import Any

from faust.assignor.partition_assignor import PartitionAssignor

from qim_streams.streaming import avoidance, metrics

log = logging.getLogger(__name__)


class AvoidingAssignor(PartitionAssignor):
    """`app.avoided` of a member: partition -> until when it is not to be given it, s since 1970."""

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas)
        self._avoided: dict[str, set[int]] = {}

    @property
    def _metadata(self) -> Any:
        found = super()._metadata
        now_s = time.time()
        avoided = {partition: until for partition, until in self.app.avoided.items() if until > now_s}
        notes = {
            name: number
            for name, number in found.topic_groups.items()
            if not name.startswith(avoidance.PREFIX)
        }
        found.topic_groups = notes | avoidance.noted(avoided)
        return found

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        now_s = time.time()
        self._avoided = {
            member: avoidance.read_notes(self._get_client_metadata(metadata).topic_groups or {}, now_s)
            for member, metadata in member_metadata.items()
        }
        return super()._perform_assignment(cluster, member_metadata)

    def _global_table_standby_assignments(self, assignments: Any, partitions_by_topic: Any) -> Any:
        """The last step before the assignment is told: what Faust handed out, without what is avoided."""
        if any(self._avoided.values()):
            self._exchange(assignments)
        return super()._global_table_standby_assignments(assignments, partitions_by_topic)

    def _exchange(self, assignments: Any) -> None:
        by_topic: dict[str, dict[str, set[int]]] = defaultdict(dict)
        for member, one in assignments.items():
            for topic, partitions in one.actives.items():
                by_topic[topic][member] = set(partitions)
        told: set[tuple[str, int]] = set()
        for topic, owned in by_topic.items():
            told.update(avoidance.exchange(owned, self._avoided))
            for member, partitions in owned.items():
                assignments[member].actives[topic] = sorted(partitions)
        for member, partition in sorted(told):
            metrics.STUCK.labels(str(partition)).inc()
            log.error(
                "P1 partition %d comes back to %s, which gave it up: there is no other worker to take it",
                partition,
                self._member_urls.get(member, member),
            )
