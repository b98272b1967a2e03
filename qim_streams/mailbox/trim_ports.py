"""The port of trimming by age.

Spec: §5, §7.
"""

from typing import NamedTuple, Protocol


class TrimStep(NamedTuple):
    """What a step did: mailboxes looked at, entries removed; `more`: there is another step to do."""

    mailboxes: int
    entries: int
    more: bool


class AgedMailboxes(Protocol):
    """Mailboxes that can be trimmed by age, one shard at a time. Fenced by `epoch` (FencedError)."""

    async def aged(
        self, shard: int, epoch: int, now_ms: int, covered: int, retention_ms: int, note_ms: int
    ) -> int:
        """The largest mailbox_seq whose entries are older than `retention_ms`; -1 when none is known to be.

        Also notes that W stood at `covered` at `now_ms`, at most once in `note_ms`: ages are as exact as
        that, and always on the side of keeping.
        """

    async def trim_aged(
        self, shard: int, epoch: int, up_to_seq: int, mailboxes_max: int, entries_max: int
    ) -> TrimStep:
        """Remove entries at or below `up_to_seq` (and W) from some mailboxes that have any.

        Each mailbox's effective_trim is raised, in the same step, to the last entry that went. At most
        `mailboxes_max`; after `entries_max` entries no further one is begun. Repeating is safe.
        """
