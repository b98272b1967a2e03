"""The set of conversations that a rebuild reads: the port, and what can be known without a session list.

Invariants: reads only; what is answered is bounded. A set that is not `complete` leaves out
conversations of which this device keeps nothing and the mailbox holds nothing any more; those are read
from history when they are first met.

Spec: §8 (2).
"""

from contextlib import suppress
from typing import NamedTuple, Protocol

from qim_streams import limits
from qim_streams.client.requests import Requests
from qim_streams.client.session import Session
from qim_streams.errors import AdmissionRefused
from qim_streams.wire.frames import MailboxBatch, PullMailbox

PAGES_MAX = 64


class Conversations(NamedTuple):
    """Ids, and whether these are all that the user has."""

    ids: frozenset[str]
    complete: bool


class ConversationSet(Protocol):
    """Where a rebuild learns which conversations there are."""

    async def conversations(self) -> Conversations:
        """The set now. Errors as in `Requests.ask`; called again by the next attempt."""


class KnownConversations:
    """What this device keeps, and what the entries name that the user's mailbox still holds.

    Complete never. For servers without a session list (`client.sessions.ListedConversations`).
    """

    def __init__(self, session: Session, requests: Requests) -> None:
        self._session, self._requests = session, requests

    async def conversations(self) -> Conversations:
        """See `ConversationSet.conversations`. Reads at most `PAGES_MAX` pages, the oldest entries first."""
        found = set(self._session.inbox.positions())
        await self._requests.ready()
        auth = self._session.auth
        if auth is not None:
            # When it was trimmed meanwhile, its conversations are met later.
            with suppress(AdmissionRefused):
                found |= await self._in_mailbox(auth.trim_watermark, auth.sync_to_seq)
        return Conversations(frozenset(found), complete=False)

    async def _in_mailbox(self, after: int, up_to: int) -> set[str]:
        found: set[str] = set()
        for _ in range(PAGES_MAX):
            if after >= up_to:
                break
            batch = await self._requests.ask(
                lambda rid, at=after: PullMailbox(  # type: ignore[misc]
                    rid, at, up_to, limits.PULL_ENTRIES_MAX, limits.PULL_BYTES_MAX
                ),
                MailboxBatch,
            )
            found |= {event.message.conversation_id for event in batch.entries}
            after = max(after + 1, batch.covered_through_seq)
        return found
