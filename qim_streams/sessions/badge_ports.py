"""The port of badges: what is unread for many users, without their muted conversations.

Who builds notifications asks once for all the users of a batch::

    badges = await reader.badges([BadgeQuery(user, shard, (conversation_id,)) for ...])

and puts `unread` into the payload of each. `roles.session_lists.compose_badges` makes a reader on the stores.

Spec: §6 (offline), §9 (UserBadgeState).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from qim_streams.sessions.ports import SessionUser


class BadgeQuery(NamedTuple):
    """Whose badge; `shard` is the user's MailboxShard.

    `conversation_ids` are counted even if the list does not have them yet: those of the messages that the
    notification is about. The list is a moment behind the mailbox.
    """

    user: SessionUser
    shard: int
    conversation_ids: tuple[str, ...] = ()


class Badge(NamedTuple):
    """`unread` of all conversations that are not muted; not `exact`: there may be more."""

    unread: int
    exact: bool


class BadgeReader(Protocol):
    """Counts when it is asked; a few round trips for any number of users, bounded work for each."""

    async def badges(self, wanted: Sequence[BadgeQuery]) -> list[Badge]:
        """The badge of each user. StoreError: nothing is known; leave the badge out, or ask again later."""
