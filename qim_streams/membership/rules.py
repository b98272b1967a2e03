"""The rules of membership: who may change what, what a change consists of, who sees which messages.

Invariants: a group that is not dismissed and has an active member has exactly one active owner; a direct
chat never changes; a plan without effect is empty, so that a repeated request is a success that writes
nothing; nobody touches a member of his own rank or above. No I/O, no clock: the service loads what the
rules need and the store fills in the sequence number at which a change happened.

A refusal is `AdmissionRefused` with a code of the error table. `actor` None is the operator, who may do
everything that leaves the invariants intact.

Spec: §4, §5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qim_streams import limits
from qim_streams.errors import AdmissionRefused
from qim_streams.ids import is_name
from qim_streams.membership.ports import Conversation, Intervals, Join, Member

OWNER, ADMIN, MEMBER = "owner", "admin", "member"
DIRECT, GROUP = "direct", "group"
SEND_MEMBERS, SEND_ADMINS = "members", "admins"
JOIN_INVITE, JOIN_OPEN = "invite", "open"
HISTORY_JOINED, HISTORY_ALL = "joined", "all"
RANK = {OWNER: 3, ADMIN: 2, MEMBER: 1}
POLICIES = {
    "send_policy": (SEND_MEMBERS, SEND_ADMINS),
    "join_policy": (JOIN_INVITE, JOIN_OPEN),
    "history_policy": (HISTORY_JOINED, HISTORY_ALL),
}
INTERVALS_MAX = 64  # of one member: the oldest gives way, so a row stays small
UNKNOWN_AT_MS = 0  # time of a version row whose map is not what it was: the change log has forgotten it
VERSION_BLOCK = 64  # every 64th version holds the whole map, the others what they changed


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change does, before bitmaps and versions."""

    joins: tuple[Join, ...] = ()
    leaves: tuple[Member, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    head: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return not (self.joins or self.leaves or self.roles or self.head)


NOTHING = Plan()


def refuse(code: str, detail: str) -> AdmissionRefused:
    """A final refusal."""
    return AdmissionRefused(code, detail)


# -- intervals


def opened(intervals: Intervals, seq: int) -> Intervals:
    """Intervals after a join at `seq`: continued when nothing was said since the last leave."""
    if intervals and intervals[-1][1] == seq:
        return (*intervals[:-1], (intervals[-1][0], None))
    return (*intervals[max(0, len(intervals) - INTERVALS_MAX + 1) :], (seq, None))


def closed(intervals: Intervals, seq: int) -> Intervals:
    """Intervals after a leave at `seq`: an interval without a message is dropped."""
    joined = intervals[-1][0]
    return intervals[:-1] if joined == seq else (*intervals[:-1], (joined, seq))


def visible_ranges(member: Member | None, history_policy: str) -> Intervals:
    """The messages a user may read: (from exclusive, to inclusive or None = up to the end), ascending.

    `joined`: what was said while the user was a member. `all`: for an active member everything, for one
    who left everything up to the last leave. A user who never was a member sees nothing.
    """
    if member is None:
        return ()
    if history_policy == HISTORY_ALL:
        if member.active:
            return ((0, None),)
        end = max((left for _, left in member.intervals if left is not None), default=0)
        return ((0, end),) if end else ()
    return member.intervals


def is_visible(ranges: Intervals, seq: int) -> bool:
    """Whether `seq` lies in one of the ranges."""
    return any(start < seq and (end is None or seq <= end) for start, end in ranges)


# -- who may


def _changeable(head: Conversation) -> None:
    if head.kind == DIRECT:
        raise refuse("NOT_ALLOWED", "a direct chat has the two members it was made for")
    if head.dismissed:
        raise refuse("DISMISSED", "the group was dismissed")


def _rank(actor: Member | None, system: bool) -> int:
    if system:
        return RANK[OWNER] + 1
    if actor is None or not actor.active:
        raise refuse("NOT_MEMBER", "only a member may do this")
    return RANK[actor.role]


def _require(rank: int, role: str, what: str) -> None:
    if rank < RANK[role]:
        raise refuse("NOT_ALLOWED", f"{what} needs the role {role}")


def _room(head: Conversation, joining: int) -> None:
    if head.members_active + joining > head.members_max:
        raise refuse(
            "GROUP_TOO_LARGE",
            f"{head.members_active} members and {joining} more are over the limit of {head.members_max}",
        )


def check_policies(policies: Mapping[str, object]) -> None:
    """FIELD_INVALID unless every policy has one of its values."""
    for name, allowed in POLICIES.items():
        if name in policies and policies[name] not in allowed:
            raise refuse("FIELD_INVALID", f"{name} must be one of {', '.join(allowed)}")


def check_name(name: object) -> None:
    """FIELD_INVALID unless `name` is a text of at most 128 characters without control characters."""
    if not is_name(name, limits.GROUP_NAME_MAX):
        raise refuse("FIELD_INVALID", f"name must be a text of at most {limits.GROUP_NAME_MAX} characters")


# -- plans


def new_head(kind: str, fields: Mapping[str, str], members_max: int, now_ms: int) -> dict[str, str | int]:
    """The head fields of a new conversation; FIELD_INVALID for a field that cannot be chosen."""
    defaults: dict[str, str | int] = {
        "kind": kind,
        "name": "",
        "send_policy": SEND_MEMBERS,
        "join_policy": JOIN_INVITE,
        "history_policy": HISTORY_JOINED,
        "members_max": members_max,
        "created_at": now_ms,
        "creator_id": "",
        "dismissed": 0,
    }
    unknown = set(fields) - {"name", *POLICIES}
    if unknown:
        raise refuse("FIELD_INVALID", f"{', '.join(sorted(unknown))} cannot be set")
    return defaults | dict(fields)


def plan_create(
    creator: Join | None, others: Iterable[Join], head: Mapping[str, str | int], members_max: int
) -> Plan:
    """A new group: the creator is its owner; without one (operator) the first of the others is."""
    check_name(head.get("name", ""))
    check_policies(head)
    unique = {join.user_id: join for join in others}
    if creator is not None:
        unique.pop(creator.user_id, None)
        members = [creator, *unique.values()]
    else:
        members = list(unique.values())
    if not members:
        raise refuse("FIELD_INVALID", "members: a group needs at least one")
    if len(members) > members_max:
        raise refuse("GROUP_TOO_LARGE", f"{len(members)} members are over the limit of {members_max}")
    first = members[0]
    joins = (Join(first.user_id, first.ordinal, OWNER), *members[1:])
    return Plan(joins=joins, head=head)


def may_add(head: Conversation, actor: Member | None, *, system: bool = False) -> None:
    """Refuse who may not add: with `invite` owner and administrators may, with `open` every member."""
    _changeable(head)
    rank = _rank(actor, system)
    if head.join_policy == JOIN_INVITE:
        _require(rank, ADMIN, "adding members")


def plan_add(head: Conversation, users: Sequence[tuple[Join, Member | None]]) -> Plan:
    """Add users, for an actor who may (`may_add`); those who are members already are left as they are."""
    return _joining(head, users)


def may_join(head: Conversation, row: Member | None) -> None:
    """Refuse a user who may not join by himself; a member "joins" without effect."""
    _changeable(head)
    if head.join_policy != JOIN_OPEN and (row is None or not row.active):
        raise refuse("NOT_ALLOWED", "members are added by an administrator")


def _joining(head: Conversation, users: Sequence[tuple[Join, Member | None]]) -> Plan:
    joins = {join.user_id: join for join, row in users if row is None or not row.active}
    _room(head, len(joins))
    if head.members_active == 0 and joins:  # everybody had left: the first one back owns the group
        first = next(iter(joins.values()))
        joins[first.user_id] = Join(first.user_id, first.ordinal, OWNER)
    return Plan(joins=tuple(joins.values()))


def plan_leave(head: Conversation, member: Member | None, heir: Member | None) -> Plan:
    """A member leaves; an owner's role passes to `heir` (see `heir_of`), who is None when nobody stays."""
    if head.kind == DIRECT:
        raise refuse("NOT_ALLOWED", "a direct chat cannot be left")
    if member is None:
        raise refuse("NOT_MEMBER", "you are not a member of the group")
    if not member.active:
        return NOTHING
    roles: dict[str, str] = {}
    if member.role == OWNER:
        roles[member.user_id] = MEMBER
        if heir is not None:
            roles[heir.user_id] = OWNER
    elif member.role == ADMIN:
        roles[member.user_id] = MEMBER
    return Plan(leaves=(member,), roles=roles)


def heir_of(members: Iterable[Member], leaving: str) -> Member | None:
    """Who owns a group when its owner leaves: the highest rank, then the longest there, then by id."""
    candidates = [m for m in members if m.active and m.user_id != leaving]
    return min(candidates, key=lambda m: (-RANK[m.role], m.intervals[-1][0], m.user_id), default=None)


def plan_remove(
    head: Conversation, actor: Member | None, targets: Sequence[Member], *, system: bool = False
) -> Plan:
    """Remove members. An administrator removes members, the owner everybody else; nobody the owner.

    Targets that are not active are left as they are; nobody removes himself (that is leaving).
    """
    _changeable(head)
    rank = _rank(actor, system)
    _require(rank, ADMIN, "removing members")
    leaving = {target.user_id: target for target in targets if target.active}
    for target in leaving.values():
        if actor is not None and target.user_id == actor.user_id:
            raise refuse("NOT_ALLOWED", "use leave for yourself")
        if RANK[target.role] >= min(rank, RANK[OWNER]):
            raise refuse("NOT_ALLOWED", f"a member with the role {target.role} cannot be removed by you")
    roles = {target.user_id: MEMBER for target in leaving.values() if target.role == ADMIN}
    return Plan(leaves=tuple(leaving.values()), roles=roles)


def plan_set_role(
    head: Conversation,
    actor: Member | None,
    target: Member | None,
    role: str,
    *,
    owner: Member | None = None,
    system: bool = False,
) -> Plan:
    """Give a member a role. Only the owner may; giving `owner` away makes the giver an administrator.

    `owner` is the group's owner, needed when the operator transfers ownership.
    """
    _changeable(head)
    _require(_rank(actor, system), OWNER, "setting a role")
    if role not in RANK:
        raise refuse("FIELD_INVALID", f"role must be one of {', '.join(RANK)}")
    if target is None or not target.active:
        raise refuse("NOT_MEMBER", "the user is not a member of the group")
    if target.role == role:
        return NOTHING
    if target.role == OWNER:
        raise refuse("NOT_ALLOWED", "an owner hands the group over by giving somebody else the role owner")
    roles = {target.user_id: role}
    giver = actor if actor is not None and actor.role == OWNER else owner
    if role == OWNER and giver is not None:
        roles[giver.user_id] = ADMIN
    return Plan(roles=roles)


def plan_update(
    head: Conversation, actor: Member | None, fields: Mapping[str, str], *, system: bool = False
) -> Plan:
    """Change the name or a policy. Owner and administrators may."""
    _changeable(head)
    _require(_rank(actor, system), ADMIN, "changing the group")
    unknown = set(fields) - {"name", *POLICIES}
    if unknown:
        raise refuse("FIELD_INVALID", f"{', '.join(sorted(unknown))} cannot be changed")
    if "name" in fields:
        check_name(fields["name"])
    check_policies(fields)
    return Plan(head={name: value for name, value in fields.items() if getattr(head, name) != value})


def plan_dismiss(head: Conversation, actor: Member | None, *, system: bool = False) -> Plan:
    """End a group: nobody can send or join any more, history stays readable. Only the owner may."""
    if head.kind == DIRECT:
        raise refuse("NOT_ALLOWED", "a direct chat cannot be dismissed")
    _require(_rank(actor, system), OWNER, "dismissing the group")
    return NOTHING if head.dismissed else Plan(head={"dismissed": 1})


# -- versions


def is_checkpoint(version: int) -> bool:
    """Whether a version's row holds the whole map."""
    return version == 1 or version % VERSION_BLOCK == 0


def chain_of(version: int) -> range:
    """The versions whose rows together give the map of `version`, the whole map first."""
    start = version - version % VERSION_BLOCK
    return range(max(1, start), version + 1)


def fold_map(rows: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The map of the last row: changes on top of the whole map; bitmap version 0 is "nobody"."""
    folded: dict[int, int] = {}
    for row in rows:
        folded.update(row)
    return {shard: bitmap for shard, bitmap in folded.items() if bitmap}


def garbage(block: Iterable[Mapping[int, int]], following: Mapping[int, int]) -> list[tuple[int, int]]:
    """(shard, bitmap version) pairs that only the versions of `block` used, `following` being the whole map
    of the version after it."""
    used = {(shard, bitmap) for row in block for shard, bitmap in row.items() if bitmap}
    return sorted(pair for pair in used if following.get(pair[0]) != pair[1])
