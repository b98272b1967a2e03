"""Ports of the archive stage: the archive, and the hot tier's messages that it stands in for.

Spec: §1, §3, §14.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

RANGE_LIMIT_MAX = 1_000  # messages in one answer of `range`
SEQ_MAX = 2**63 - 1  # of an archived message; a store may keep it as a signed number of 64 bits
REVISION_MAX = 4_095  # changes of one message


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A MessageRecord's bytes with its address.

    `revision` orders the states of one message: 0 as committed, a larger one for each later change (an
    edit, a recall). An archive holds one state of a message, the one with the highest revision that it
    was ever given, in whatever order they came. `offset` is that of its Outbox record: should two records
    claim one address and revision, the first one in the log stands. It is not part of what is compared.
    """

    tenant_id: str
    conversation_id: str
    conversation_seq: int  # 1 to SEQ_MAX
    record: bytes  # not empty; begins with a version byte, which is never 0
    revision: int = 0  # 0 to REVISION_MAX
    offset: int = field(default=0, compare=False)


class ArchiveReader(Protocol):
    """Reading the archive. Reads never write anything, however often they are repeated.

    A reader in another process than the writer may be a moment behind; it is never ahead of what is
    durable, and its watermark is never ahead of the messages that it shows.
    """

    async def watermark(self, partition: int) -> int:
        """The last Outbox offset up to which everything is archived (inclusive), -1 for none.

        May be behind what was published last (after a power loss: by the batches of the last moment);
        never above what is durable.
        """

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the archive has none."""

    async def range(
        self,
        tenant_id: str,
        conversation_id: str,
        after_seq: int,
        up_to_seq: int,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[ArchivedMessage]:
        """Messages with after_seq < seq <= up_to_seq, at most `limit` (1 to RANGE_LIMIT_MAX).

        Ascending from the lower end; with `newest_first` descending from the upper end, so that `limit`
        keeps the newest. Bounds may lie outside of what exists. Fewer than `limit` means that the archive
        holds no more between the bounds.

        The page after seq `a`: `range(..., a, SEQ_MAX, limit)`. The page before seq `b`:
        `range(..., 0, b - 1, limit, newest_first=True)`.
        """

    async def latest(self, tenant_id: str, conversation_id: str) -> int:
        """The largest archived seq of a conversation, 0 for none."""

    async def close(self) -> None:
        """Release the store; calls after this raise StoreError. Closing twice is harmless."""


class Archive(ArchiveReader, Protocol):
    """Messages by (tenant, conversation, seq), and a watermark per Outbox partition."""

    async def store(self, partition: int, messages: Sequence[ArchivedMessage], watermark: int) -> None:
        """Make the messages durable, and only then move the partition's watermark to `watermark`.

        Idempotent: storing the same messages again changes nothing; at an address that holds a higher
        revision nothing changes either, a higher one replaces what is there. Of two records of one
        revision the one with the lower offset stands, if they come in the order of the log; a store may
        hold to that in any order. The watermark only grows: a smaller one is ignored, so an archiver
        that was replaced and wakes up harms nothing.
        `messages` holds an address at most once and may be empty. StoreUnavailable: some of the
        messages may be there, the watermark does not cover them (outcome UNKNOWN); repeat the call.
        """

    async def fence(self, partition: int) -> int:
        """The epoch of the last barrier of an Outbox partition that the archiver has passed, 0 for none."""

    async def raise_fence(self, partition: int, epoch: int) -> None:
        """Keep the epoch of a barrier: everything before it is covered, itself is not yet.

        It only grows, and is durable before any watermark that is published later. Errors as of `store`.
        """


class ArchivedCopy(NamedTuple):
    """What the archive holds of a message that may leave the hot tier: it goes only if it is the same."""

    conversation_seq: int
    message_id: bytes
    record: bytes


class Dropped(NamedTuple):
    """What `HotRecords.drop` did: messages removed, messages kept because the hot tier holds another state
    of them, and the seq of a message that is not confirmed yet, where it stopped (None: it did not)."""

    removed: int
    differing: int
    stopped_at: int | None


class Covered(NamedTuple):
    """A conversation, and the newest of its messages that the published watermark covers (0: not known)."""

    tenant_id: str
    conversation_id: str
    seq: int


class Silent(NamedTuple):
    """A conversation that was not heard of for long: what may be trimmed are `hot_from` to `covered_seq`.

    Both are 0 for a conversation that the hot tier does not know.
    """

    tenant_id: str
    conversation_id: str
    hot_from: int
    covered_seq: int


class HotRecords(Protocol):
    """The hot tier's messages as the trimmer sees them. StoreUnavailable: nothing of a call, or all of it.

    Each conversation has a number `hot_from`, at first 1: what lies below was trimmed before.
    """

    async def note(self, partition: int, conversations: Sequence[Covered], at_ms: int) -> list[int]:
        """Remember how far conversations were covered at `at_ms`; their `hot_from`. Neither ever goes back.

        0 for a conversation that the hot tier does not know: there is nothing to trim, nor to remember.
        """

    async def silent(self, partition: int, before_ms: int, limit: int) -> list[Silent]:
        """What was last noted at or before `before_ms`, oldest first."""

    async def drop(
        self,
        partition: int,
        conversation: tuple[str, str],
        copies: Sequence[ArchivedCopy],
        hot_from: int,
    ) -> Dropped:
        """Remove each message of which the hot tier holds the very same bytes; then raise `hot_from`.

        `copies` ascend. A message that is still RESERVED stays: a writer may have to append it again; the
        call ends there, and `hot_from` is raised to its seq at most. `hot_from` never goes down.
        """

    async def forget(self, partition: int, conversations: Sequence[tuple[str, str]], before_ms: int) -> None:
        """Take (tenant, conversation) off the list of `silent`, unless noted again after `before_ms`."""


def require_limit(limit: int) -> int:
    """`limit` if it is legal for `range`; ValueError names the bound."""
    if not 1 <= limit <= RANGE_LIMIT_MAX:
        raise ValueError(f"limit: {limit} is not between 1 and {RANGE_LIMIT_MAX}")
    return limit
