"""GroupService: what users and operators may do to groups, for the owner of an Outbox partition.

A command waits for its conversation's turn, loads what the rule needs, lets the rule plan and has the plan
written (`changes`). An empty plan is the answer to a repeat. Ordinals are given out only after the rule
agreed, so that a refused request leaves nothing behind. An answer that changes nothing, a refusal too, is
given only after the store has proved that it still has all that this owner wrote (`ChangeWriter.prove`): a
store that came back without its last second would else confirm a member whom the change log saw leaving.

Spec: §4, §5.
"""

from collections.abc import Awaitable, Callable, Sequence

from qim_streams.errors import AdmissionRefused
from qim_streams.membership import rules
from qim_streams.membership.changes import ChangeWriter
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState, check
from qim_streams.membership.ports import Conversation, Join, Member, MembershipStore, OrdinalDirectory
from qim_streams.membership.rules import Plan

CONFLICTS_MAX = 5  # of one command with changes made by others; one owner has none
CONFLICT_RETRY_MS = 100


class GroupService:
    """Groups of the partitions that this process owns."""

    def __init__(self, store: MembershipStore, directory: OrdinalDirectory, writer: ChangeWriter) -> None:
        self._store, self._directory, self._writer = store, directory, writer
        self._planners: dict[GroupOp, Callable[[GroupCommand, Conversation], Awaitable[Plan]]] = {
            GroupOp.ADD: self._add,
            GroupOp.JOIN: self._join,
            GroupOp.LEAVE: self._leave,
            GroupOp.REMOVE: self._remove,
            GroupOp.SET_ROLE: self._set_role,
            GroupOp.UPDATE: self._update,
            GroupOp.DISMISS: self._dismiss,
        }

    # -- commands

    async def execute(self, partition: int, epoch: int, command: GroupCommand) -> GroupState:
        """Do it and answer with the group's state.

        AdmissionRefused: nothing was done. FencedError: another owner; repeat there. StoreUnavailable
        (NOT_APPLIED): nothing was done. Repeating any command is safe.
        """
        check(command)
        try:
            state, changed = await self._execute(partition, epoch, command)
        except AdmissionRefused:
            await self._writer.prove(partition, epoch)
            raise
        if not changed:
            await self._writer.prove(partition, epoch)
        return state

    async def _execute(self, partition: int, epoch: int, command: GroupCommand) -> tuple[GroupState, bool]:
        """The group's state, and whether it was changed for it."""
        if command.op is GroupOp.GET:
            return await self._get(command), False
        async with self._writer.turn(command.tenant_id, command.conversation_id):
            if command.op is GroupOp.CREATE:
                return await self._create(partition, epoch, command)
            for _ in range(CONFLICTS_MAX):
                head = await self._head(command)
                plan = await self._planners[command.op](command, head)
                if plan.empty:
                    return GroupState(head), False
                after = await self._writer.write(partition, epoch, head, plan)
                if after is not None:
                    return GroupState(after), True
        raise AdmissionRefused(
            "MEMBERSHIP_CONFLICT", "other changes came first", retry_after_ms=CONFLICT_RETRY_MS
        )

    async def _get(self, command: GroupCommand) -> GroupState:
        head = await self._head(command)
        actor = await self._row(command, command.actor_id)
        if not command.system and (actor is None or not actor.active):
            raise rules.refuse("NOT_MEMBER", "you are not a member of the group")
        if command.limit == 0:
            return GroupState(head)
        page = await self._store.page(
            command.tenant_id, command.conversation_id, command.after_user_id, command.limit + 1
        )
        more = len(page) > command.limit
        members = tuple(page[: command.limit])
        return GroupState(head, members, members[-1].user_id if more else None)

    async def _create(self, partition: int, epoch: int, command: GroupCommand) -> tuple[GroupState, bool]:
        before = await self._store.conversation(command.tenant_id, command.conversation_id)
        if before is not None:
            return _created_before(before, command), False
        others = [user for user in dict.fromkeys(command.user_ids) if user != command.actor_id]
        users = others if command.actor_id is None else [command.actor_id, *others]
        head = rules.new_head(
            rules.GROUP, command.fields, self._writer.limits.members_max, self._writer.around.now_ms()
        )
        head["creator_id"] = command.actor_id or ""
        # Refused before ordinals are given out, so that a refused request leaves nothing behind.
        rules.plan_create(
            None, [Join(user, 0, rules.MEMBER) for user in users], head, self._writer.limits.members_max
        )
        joins = await self._joins(command.tenant_id, users)
        creator = None if command.actor_id is None else joins.pop(0)
        plan = rules.plan_create(creator, joins, head, self._writer.limits.members_max)
        empty = _nobody(command.tenant_id, command.conversation_id)
        after = await self._writer.write(partition, epoch, empty, plan)
        if after is None:
            raise AdmissionRefused("CONVERSATION_EXISTS", "somebody made it at the same time")
        return GroupState(after), True

    async def _add(self, command: GroupCommand, head: Conversation) -> Plan:
        rules.may_add(head, await self._row(command, command.actor_id), system=command.system)
        users = list(dict.fromkeys(command.user_ids))
        rows = await self._rows(command, users)
        missing = [user for user in users if user not in rows or not rows[user].active]
        rules.plan_add(head, [(Join(user, 0, rules.MEMBER), None) for user in missing])
        joins = await self._joins(command.tenant_id, missing)
        return rules.plan_add(head, [(join, rows.get(join.user_id)) for join in joins])

    async def _join(self, command: GroupCommand, head: Conversation) -> Plan:
        assert command.actor_id is not None, "checked: joining needs an actor"
        row = await self._row(command, command.actor_id)
        rules.may_join(head, row)
        if row is not None and row.active:
            return rules.NOTHING
        (join,) = await self._joins(command.tenant_id, [command.actor_id])
        return rules.plan_add(head, [(join, row)])

    async def _leave(self, command: GroupCommand, head: Conversation) -> Plan:
        assert command.actor_id is not None, "checked: leaving needs an actor"
        row = await self._row(command, command.actor_id)
        heir = None
        if row is not None and row.active and row.role == rules.OWNER:
            everyone = await self._store.everyone(command.tenant_id, command.conversation_id)
            heir = rules.heir_of(everyone, command.actor_id)
        return rules.plan_leave(head, row, heir)

    async def _remove(self, command: GroupCommand, head: Conversation) -> Plan:
        actor = await self._row(command, command.actor_id)
        targets = await self._rows(command, command.user_ids)
        return rules.plan_remove(head, actor, list(targets.values()), system=command.system)

    async def _set_role(self, command: GroupCommand, head: Conversation) -> Plan:
        actor = await self._row(command, command.actor_id)
        target = await self._row(command, command.user_ids[0])
        owner = None
        if command.system and command.role == rules.OWNER:
            everyone = await self._store.everyone(command.tenant_id, command.conversation_id)
            owner = next((m for m in everyone if m.active and m.role == rules.OWNER), None)
        return rules.plan_set_role(head, actor, target, command.role, owner=owner, system=command.system)

    async def _update(self, command: GroupCommand, head: Conversation) -> Plan:
        actor = await self._row(command, command.actor_id)
        return rules.plan_update(head, actor, command.fields, system=command.system)

    async def _dismiss(self, command: GroupCommand, head: Conversation) -> Plan:
        return rules.plan_dismiss(head, await self._row(command, command.actor_id), system=command.system)

    # -- reading

    async def _head(self, command: GroupCommand) -> Conversation:
        head = await self._store.conversation(command.tenant_id, command.conversation_id)
        if head is None:
            raise rules.refuse("NO_CONVERSATION", "there is no such conversation")
        return head

    async def _rows(self, command: GroupCommand, users: Sequence[str]) -> dict[str, Member]:
        found = await self._store.members(command.tenant_id, command.conversation_id, users)
        return {member.user_id: member for member in found}

    async def _row(self, command: GroupCommand, user: str | None) -> Member | None:
        return None if user is None else (await self._rows(command, [user])).get(user)

    async def _joins(self, tenant_id: str, users: Sequence[str]) -> list[Join]:
        ordinals = await self._directory.assign(tenant_id, users) if users else []
        return [Join(user, ordinal, rules.MEMBER) for user, ordinal in zip(users, ordinals, strict=True)]


def _created_before(head: Conversation, command: GroupCommand) -> GroupState:
    """The answer to a repeated CREATE of the same creator; others learn that the id is taken."""
    if head.kind == rules.GROUP and head.creator_id == (command.actor_id or ""):
        return GroupState(head)
    raise rules.refuse("CONVERSATION_EXISTS", "a conversation with this id exists")


def _nobody(tenant_id: str, conversation_id: str) -> Conversation:
    """The head of a conversation before its first version."""
    return Conversation(tenant_id, conversation_id, rules.GROUP, 0, 0, "", "", "", "", 0, 0, 0, "", False)
