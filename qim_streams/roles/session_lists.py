"""The session list put together on the real stores, for the roles that read it and carry it into the archive.

Spec: §9.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from qim_streams.commit.calls import PartitionCalls
from qim_streams.gateway.list_changes import ListChanges
from qim_streams.gateway.redis_signals import RedisSignals
from qim_streams.gateway.session_lists import SessionListFrames
from qim_streams.gateway.session_totals import SessionTotalsTeller
from qim_streams.history.redis_history import RedisHistoryStore
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.actions import UserActions
from qim_streams.sessions.badges import Badges
from qim_streams.sessions.entering import Entering
from qim_streams.sessions.group_changes import GroupChanges
from qim_streams.sessions.keeping import StateKeeper
from qim_streams.sessions.positions import Positions
from qim_streams.sessions.reading import SessionLists
from qim_streams.sessions.receipts import Receipts
from qim_streams.sessions.redis_activity import RedisKnownActivity
from qim_streams.sessions.redis_heads import RedisConversationHeads
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.sessions.restoring import RestoredStates, UserDeletions
from qim_streams.sessions.rows import Rows
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.sessions.tails import Tails
from qim_streams.sessions.whole_heads import WholeHeads
from qim_streams.sessions.whole_projection import WholeProjection
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.mailboxes import WholeMailboxes

PartitionOf = Callable[[str, str], int]


class ListServices(NamedTuple):
    """What a gateway needs. `signals.run` is to be run."""

    frames: SessionListFrames
    signals: RedisSignals
    deletions: UserDeletions
    members: RedisMembershipStore


class _Reading(NamedTuple):
    """What lists and badges are read with."""

    states: RedisUserStates
    projection: RedisProjection
    heads: WholeHeads
    rows: Rows
    positions: Positions


def _reading(redis: RedisClient, archive: Any, partition_of: PartitionOf, mappings: Mappings) -> _Reading:
    mailboxes, projection, states = (
        WholeMailboxes(RedisMailboxStore(redis), mappings),
        WholeProjection(redis, mappings),
        RedisUserStates(redis, now_ms),
    )
    rebuild = SessionRebuild(
        store=projection,
        rebuilds=projection,
        mailboxes=mailboxes,
        known=RedisKnownActivity(redis, partition_of),
        shard_of=lambda tenant, user, ordinal: mappings.current.home(tenant, user, ordinal),
    )
    heads = WholeHeads(RedisConversationHeads(redis, partition_of), RedisWholeness(redis), partition_of)
    rows = Rows(heads, Tails(RedisHistoryStore(redis, partition_of), archive), states)
    positions = Positions(mailboxes, projection, rebuild, RestoredStates(states, archive))
    return _Reading(states, projection, heads, rows, positions)


def compose_lists(
    redis: RedisClient,
    archive: Any,
    ordinals: OrdinalDirectory,
    partition_of: PartitionOf,
    shards: int,
    mappings: Mappings | None = None,
) -> ListServices:
    """The session list of a gateway. `shards`: MailboxShards of the beginning; `mappings`: what was split."""
    mappings = mappings or Mappings(shards)
    states, projection, heads, rows, positions = _reading(redis, archive, partition_of, mappings)
    lists = SessionLists(states, archive, rows, positions)
    signals = RedisSignals(redis)
    totals = SessionTotalsTeller(Badges(states, archive, rows, positions), signals, now_ms)
    # The actions tell by the frames, which are made of the actions.
    actions = UserActions(states, lists, lambda actor, changed: frames.tell(actor, changed), now_ms)
    members = RedisMembershipStore(redis, PartitionCalls(ScriptPipe(redis)), partition_of)
    receipts = Receipts(members, heads, states, now_ms)
    entering = Entering(ordinals, projection, GroupChanges(ordinals, members, signals), now_ms)
    changes = ListChanges(lists, states, totals)
    frames = SessionListFrames(lists, actions, receipts, signals, totals, changes, ordinals, entering)
    return ListServices(frames, signals, UserDeletions(RestoredStates(states, archive)), members)


def compose_list_reader(
    redis: RedisClient, archive: Any, partition_of: PartitionOf, mappings: Mappings
) -> SessionLists:
    """Who reads lists for others than their users; `archive` as for `compose_badges`."""
    states, _, _, rows, positions = _reading(redis, archive, partition_of, mappings)
    return SessionLists(states, archive, rows, positions)


def compose_badges(
    redis: RedisClient,
    archive: Any,
    partition_of: PartitionOf,
    shards: int,
    mappings: Mappings | None = None,
) -> Badges:
    """Who counts badges for notifications; `archive` is what `archive.opening.open_archive_reader` gives."""
    states, _, _, rows, positions = _reading(redis, archive, partition_of, mappings or Mappings(shards))
    return Badges(states, archive, rows, positions)


def compose_entering(redis: RedisClient, partitions: int) -> Entering:
    """What lists learn of changed groups, without a gateway. `partitions`: Outbox partitions."""
    wholeness = RedisWholeness(redis, partitions)
    members = RedisMembershipStore(
        redis, PartitionCalls(ScriptPipe(redis)), partial(partition_of, partitions)
    )
    # Without a memory: what it said before the hot tier was lost may be somebody else's now.
    ordinals = RedisOrdinalDirectory(redis, ScriptPipe(redis), wholeness, cache_max=0)
    changes = GroupChanges(ordinals, members, RedisSignals(redis))
    return Entering(ordinals, RedisProjection(redis), changes, now_ms)


def compose_keeper(redis: RedisClient, archive: Any, outbox_partitions: int) -> StateKeeper:
    """Who carries states into the archive; one per archive is enough, several harm nothing."""
    states = RedisUserStates(redis, now_ms)
    return StateKeeper(
        states,
        states,
        RedisProjection(redis),
        archive,
        RedisOrdinalDirectory(redis, ScriptPipe(redis), cache_max=0),
        RedisHistoryStore(redis, partial(partition_of, outbox_partitions)),
        now_ms,
    )
