"""F5: sends, reads, recalls, joins, leaves, deletes of several users on several devices, against the formula.

After every step each user's list, row by row, and his totals say what the oracle says, which shares no code
with them. In between messages move to the archive, and the hot tier loses all states of users.
"""

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qim_streams.membership.ports import Member
from qim_streams.membership.rules import opened
from qim_streams.sessions.badge_ports import BadgeQuery
from qim_streams.testing.unread_oracle import (
    Facts,
    Marks,
    Said,
    expected_listed,
    expected_totals,
    expected_unread,
)
from tests.support.history_world import TENANT
from tests.support.session_world import SessionWorld

USERS, CHATS = ("ann", "ben", "cleo"), ("team", "room")
WHO, WHERE, DEVICE = st.sampled_from(USERS), st.sampled_from(CHATS), st.sampled_from(("phone", "laptop"))
PART = st.floats(0, 1.2)


class UnreadMachine(RuleBasedStateMachine):
    """The machine of F5."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = SessionWorld()
        self.facts: dict[str, Facts] = {}
        self.versions: dict[tuple[str, str], int] = {}
        for chat in CHATS:
            self.world.past.group(dict.fromkeys(USERS, ((0, None),)), chat=chat)
            self.facts[chat] = Facts(marks={user: Marks(join_seq=1) for user in USERS})
            for user in USERS:
                self.run(self.world.saw(user, chat, 1))

    def teardown(self) -> None:
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def is_member(self, user: str, chat: str) -> bool:
        return self.facts[chat].marks[user].join_seq is not None

    # -- what happens in conversations

    @rule(user=WHO, chat=WHERE, count=st.sampled_from((1, 1, 2, 3, 12, 90)))
    def send(self, user: str, chat: str, count: int) -> None:
        if self.is_member(user, chat):
            last = self.world.say(chat, user, count)
            self.facts[chat].said += [Said(seq, user) for seq in range(last - count + 1, last + 1)]
            self.world.now_ms += 1
            for member in USERS:
                if self.is_member(member, chat):
                    self.run(self.world.saw(member, chat, self.world.now_ms))

    @rule(user=WHO, chat=WHERE, part=PART)
    def recall(self, user: str, chat: str, part: float) -> None:
        plain = [one for one in self.facts[chat].said if not one.operation and not one.recalled]
        if plain and self.is_member(user, chat):
            target = plain[min(int(part * len(plain)), len(plain) - 1)]
            target.recalled = True
            seq = self.world.recall(chat, target.seq, user)
            self.facts[chat].said.append(Said(seq, user, operation=True))

    @rule(user=WHO, chat=WHERE)
    def leave_or_join(self, user: str, chat: str) -> None:
        facts, members = self.facts[chat], self.world.past.tier.partition(0).members[TENANT, chat]
        marks, row = facts.marks[user], members[user]
        if marks.join_seq is None:
            members[user] = replace(row, active=True, intervals=opened(row.intervals, facts.head))
            marks.join_seq = members[user].intervals[-1][0] + 1
        elif row.intervals[-1][0] < facts.head:
            self.world.past.end(user, facts.head, chat)
            marks.join_seq = None
        assert isinstance(members[user], Member)

    @rule(chat=WHERE, part=PART)
    def archive_and_trim(self, chat: str, part: float) -> None:
        upto = min(int(part * self.facts[chat].head), self.facts[chat].head)
        if upto:
            self.run(self.world.past.archive_up_to(upto, chat))
            for seq in range(1, upto + 1):
                rows = self.world.past.tier.partition(0).records[TENANT, chat]
                if self.world.past.archive.messages.get((TENANT, chat, seq)) == rows.get(seq):
                    rows.pop(seq, None)

    # -- what users do

    @rule(user=WHO, chat=WHERE, device=DEVICE, parts=st.lists(PART, min_size=1, max_size=4))
    def read(self, user: str, chat: str, device: str, parts: list[float]) -> None:
        """Several marks at once, in any order, also beyond the end: their maximum counts."""
        facts, actor = self.facts[chat], self.world.actor(user, device)
        seqs = [int(part * facts.head) for part in parts]

        async def marked() -> None:
            await asyncio.gather(*(self.world.actions.mark_read(actor, chat, seq) for seq in seqs))

        end = facts.head if self.is_member(user, chat) else self.left_at(user, chat)
        self.run(marked())
        facts.marks[user].read_seq = max(facts.marks[user].read_seq, min(max(seqs), end))

    def left_at(self, user: str, chat: str) -> int:
        row = self.world.past.tier.partition(0).members[TENANT, chat][user]
        return row.intervals[-1][1] or 0

    @rule(user=WHO, chat=WHERE, device=DEVICE, part=PART, hidden=st.booleans())
    def clear(self, user: str, chat: str, device: str, part: float, hidden: bool) -> None:
        facts = self.facts[chat]
        upto = int(part * facts.head)
        self.run(self.world.actions.clear(self.world.actor(user, device), chat, upto, hidden))
        marks = facts.marks[user]
        marks.deleted_to_seq = max(marks.deleted_to_seq, min(upto, facts.head))
        if hidden:
            marks.hidden_at = facts.head

    @rule(user=WHO, chat=WHERE, parts=st.lists(PART, max_size=5))
    def delete(self, user: str, chat: str, parts: list[float]) -> None:
        facts = self.facts[chat]
        seqs = [1 + int(part * facts.head) for part in parts]
        self.run(self.world.actions.delete_messages(self.world.actor(user), chat, seqs))
        facts.marks[user].deleted |= {seq for seq in seqs if seq <= facts.head}

    @rule(user=WHO, chat=WHERE, muted=st.booleans())
    def mute(self, user: str, chat: str, muted: bool) -> None:
        self.run(self.world.actions.set_mute(self.world.actor(user), chat, muted))
        self.facts[chat].marks[user].muted = muted

    @rule(user=WHO, chat=WHERE, hidden=st.booleans())
    def hide(self, user: str, chat: str, hidden: bool) -> None:
        self.run(self.world.actions.hide(self.world.actor(user), chat, hidden))
        self.facts[chat].marks[user].hidden_at = self.facts[chat].head if hidden else None

    @rule()
    def lose_states(self) -> None:
        """The archive has everything; then the hot tier forgets all states."""
        self.run(self.world.keeper().work())
        self.world.states.lose()

    # -- what lists say

    @invariant()
    def lists_agree(self) -> None:
        for user in USERS:
            page = self.run(self.world.page(user))
            rows = {row.view.conversation_id: row for row in page.rows}
            assert set(rows) == {chat for chat in CHATS if expected_listed(self.facts[chat], user)}
            for chat, row in rows.items():
                seen = (row.unread.messages, row.unread.exact)
                assert seen == expected_unread(self.facts[chat], user), (user, chat)
                marks = self.facts[chat].marks[user]
                assert (row.view.state.read_seq, row.view.state.muted) == (marks.read_seq, marks.muted)
                assert row.view.state.version >= self.versions.get((user, chat), 0)
                self.versions[user, chat] = row.view.state.version
            found = self.run(self.world.badges.totals(self.world.user(user), self.world.actor(user).shard))
            totals = (found.totals.unread, found.totals.muted_unread)
            assert totals == expected_totals(self.facts, user)

    @invariant()
    def badges_agree(self) -> None:
        """All users in one call: unread without muted conversations, and whether that is all."""
        asked = [BadgeQuery(self.world.user(user), self.world.actor(user).shard) for user in USERS]
        for user, badge in zip(USERS, self.run(self.world.badges.badges(asked)), strict=True):
            unread, muted = expected_totals(self.facts, user)
            heard = [
                chat
                for chat, facts in self.facts.items()
                if expected_listed(facts, user) and not facts.marks[user].muted
            ]
            exact = all(expected_unread(self.facts[chat], user)[1] for chat in heard)
            assert badge == (unread - muted, exact), user


UnreadMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestUnread = UnreadMachine.TestCase
