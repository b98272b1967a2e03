"""Results: what became of notifications, in a log of their own, from which an application's webhook is told.

A notification that the provider took, refused or gave up, or whose token is dead, makes one record in
``qim.push-result.v1``, keyed by user: those of a user lie in one partition, in the order in which they were
over. The record is in the log before the task leaves the queue; a process that dies in between makes it, or
one with another outcome, a second time. What a user's own doing let go (he read it, muted it, was online) is
no result.

Spec: §6 (offline). Why: `docs/decisions/0024-push-results.md`.
"""

from collections.abc import Sequence
from typing import Final

from qim_streams.log_ports import LogAppender, Outgoing
from qim_streams.notification.ports import QueuedTask
from qim_streams.notification.records import PushResult, PushTask
from qim_streams.notification.rules import SENT, outcome_of
from qim_streams.placement import key_partition
from qim_streams.records import record_key

RESULT_TOPIC: Final = "qim.push-result.v1"
REASON_MAX: Final = 200
_KEY_DOMAIN = b"qim.push-result.key\0"


class ResultLog:
    """Appends results. `partitions` of the topic."""

    def __init__(self, log_appender: LogAppender, partitions: int) -> None:
        self._log, self._partitions = log_appender, partitions

    async def append(self, results: Sequence[PushResult]) -> None:
        """Returns when all are acknowledged. StoreError: some may be in the log; repeating is safe."""
        if results:
            await self._log.append(
                [
                    Outgoing(
                        RESULT_TOPIC, result_partition(*one[:2], self._partitions), one.key, one.encode()
                    )
                    for one in results
                ]
            )


def result_partition(tenant_id: str, user_id: str, partitions: int) -> int:
    """The partition that a user's results go to."""
    return key_partition(_KEY_DOMAIN, record_key(tenant_id, user_id), partitions)


def result_of(
    task: PushTask, queued: QueuedTask, provider: str, why: str, reason: str, now_ms: int
) -> PushResult | None:
    """What the application is told of a task that is over for `why`; None: nothing."""
    outcome = outcome_of(why, interrupted=queued.interrupted)
    if outcome is None:
        return None
    return PushResult(
        task.tenant_id,
        task.user_id,
        task.device_id,
        queued.task_id,
        task.message_id,
        task.conversation_id,
        task.conversation_seq,
        provider,
        outcome,
        _reason(why, reason)[:REASON_MAX],
        task.committed_at,
        now_ms,
    )


def _reason(why: str, reason: str) -> str:
    """The provider's word where it has said one, else ours."""
    if why == SENT:
        return ""
    if outcome_of(why, interrupted=False) is None:
        return f"unknown: {why}"  # an attempt was begun, and then its user let it go
    return f"{why}: {reason}" if why == "gave_up" else reason or why
