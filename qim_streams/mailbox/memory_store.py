"""Mailboxes in memory: the rule of ``mailbox.lua`` in Python, for tests and simulations.

A verified fake: the conformance suite that holds for Redis holds here, and one test drives both with
the same random calls. `snapshot` and `restore` play a server that lost its last writes.

Spec: §5.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qim_streams.errors import FencedError
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.entries import check_size
from qim_streams.mailbox.kept import KeptPositions
from qim_streams.mailbox.ports import EntryGroup, StoredEntry, Stretch, WatermarkState
from qim_streams.mailbox.trim_ports import TrimStep
from qim_streams.mailbox.watermark import Marks
from qim_streams.placement import LANES

Address = tuple[int, int]


@dataclass(slots=True)
class _Mailbox:
    last: Address = (-1, -1)
    entries: dict[Address, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Shard:
    owner: int = 0
    epoch: int = 0
    lanes: tuple[int, ...] = (rule.NOTHING,) * LANES
    open_record: str = ""
    open_steps: int = 0
    mailboxes: dict[tuple[str, int], _Mailbox] = field(default_factory=dict)
    trims: dict[tuple[str, int], int] = field(default_factory=dict)
    ages: dict[int, int] = field(default_factory=dict)  # W -> when
    promised: int = rule.NOTHING
    floor: int = rule.NOTHING
    kept: KeptPositions | None = None


class MemoryMailboxStore:
    """`MailboxStore` and `AgedMailboxes` without a server. `grant` plays the lease store."""

    def __init__(self, *, mailbox_entries_max: int = 0) -> None:
        self._bound = mailbox_entries_max
        self._shards: dict[int, _Shard] = {}

    def grant(self, shard: int, epoch: int) -> None:
        """Make `epoch` the only one that may write to `shard`."""
        self._shard(shard).owner = epoch

    def snapshot(self) -> Any:
        """The whole state, to go back to with `restore`."""
        return copy.deepcopy(self._shards)

    def restore(self, state: Any) -> None:
        """Fall back to a `snapshot`, as a server that lost its last writes does."""
        self._shards = copy.deepcopy(state)

    def kept(self, shard: int) -> KeptPositions | None:
        """What was said of old cursors (`promise`)."""
        return self._shard(shard).kept

    async def write_step(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: Marks, record: str, step: int
    ) -> int:
        """See `MailboxStore.write_step`."""
        if not record:
            raise ValueError("a step belongs to a record")
        check_size(groups)
        state = self._fenced(shard, epoch)
        if rule.marks(state.lanes) != expected:
            return -1
        steps = state.open_steps if state.open_record == record else 0
        if step > steps:
            return steps
        self._write(state, groups)
        state.epoch, state.open_record, state.open_steps = epoch, record, max(steps, step + 1)
        return state.open_steps

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        *,
        record: str = "",
        steps: int = 0,
    ) -> Marks:
        """See `MailboxStore.write_and_advance`."""
        rule.check_advance(expected, observed)
        check_size(groups)
        state = self._fenced(shard, epoch)
        moved = rule.advance(state.lanes, expected, observed)
        complete = not record or (state.open_record == record and state.open_steps >= steps)
        if moved is None or not complete:
            return rule.marks(state.lanes)
        self._write(state, groups)
        state.epoch, state.lanes = epoch, moved
        if record:
            state.open_record, state.open_steps = "", 0
        return observed

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """See `MailboxStore.watermarks`."""
        states = [self._shard(shard) for shard in shards]
        return [WatermarkState(s.epoch, s.lanes, s.open_record, s.open_steps, s.promised) for s in states]

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxStore.watermark`."""
        return (await self.watermarks([shard]))[0]

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxStore.read`."""
        box = self._shard(shard).mailboxes.get((tenant_id, ordinal))
        if box is None or limit < 1:
            return []
        found = [
            StoredEntry(seq, ordinal_, value)
            for (seq, ordinal_), value in box.entries.items()
            if after_seq < seq <= up_to_seq
        ]
        return found[:limit]

    async def anything(self, stretches: Sequence[Stretch]) -> list[bool]:
        """See `MailboxStore.anything`."""
        return [
            bool(await self.read(*one, 1))
            or await self.trim_watermark(one.shard, one.tenant_id, one.ordinal) > one.after_seq
            for one in stretches
        ]

    async def trim(self, shard: int, epoch: int, tenant_id: str, ordinal: int, up_to_seq: int) -> int:
        """See `MailboxStore.trim`."""
        state = self._fenced(shard, epoch)
        address = (tenant_id, ordinal)
        stands = state.trims.get(address, rule.NOTHING)
        if address in state.trims and stands >= up_to_seq:
            return stands
        self._cut(state, address, up_to_seq)
        return up_to_seq

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """See `MailboxStore.trim_watermark`."""
        state = self._shard(shard)
        return max(state.floor, state.trims.get((tenant_id, ordinal), rule.NOTHING))

    async def promise(
        self, shard: int, epoch: int, promised: int, lost_through: int, kept: KeptPositions | None = None
    ) -> None:
        """See `MailboxStore.promise`."""
        state = self._fenced_by_owner(shard, epoch)
        state.kept = kept or state.kept
        state.promised, state.floor = promised, max(state.floor, lost_through)

    async def aged(
        self, shard: int, epoch: int, now_ms: int, covered: int, retention_ms: int, note_ms: int
    ) -> int:
        """See `AgedMailboxes.aged`."""
        state = self._fenced_by_owner(shard, epoch)
        state.ages = {seq: at for seq, at in state.ages.items() if at <= now_ms}
        if covered >= 0 and now_ms - max(state.ages.values(), default=-note_ms) >= note_ms:
            state.ages.setdefault(covered, now_ms)
        old = [(at, seq) for seq, at in state.ages.items() if at <= now_ms - retention_ms]
        if not old:
            return rule.NOTHING
        newest = max(old)
        state.ages = {seq: at for seq, at in state.ages.items() if at >= newest[0]}
        return newest[1]

    async def trim_aged(
        self, shard: int, epoch: int, up_to_seq: int, mailboxes_max: int, entries_max: int
    ) -> TrimStep:
        """See `AgedMailboxes.trim_aged`."""
        state = self._fenced_by_owner(shard, epoch)
        up_to, mailboxes, entries = min(up_to_seq, *state.lanes), 0, 0
        for address, box in list(state.mailboxes.items()):
            gone = [at for at in box.entries if at[0] <= up_to]
            if not gone:
                continue
            if mailboxes >= mailboxes_max or entries >= entries_max:
                return TrimStep(mailboxes, entries, True)
            self._cut(state, address, max(state.trims.get(address, rule.NOTHING), gone[-1][0]))
            if not box.entries:
                del state.mailboxes[address]
            mailboxes, entries = mailboxes + 1, entries + len(gone)
        return TrimStep(mailboxes, entries, False)

    def _shard(self, shard: int) -> _Shard:
        return self._shards.setdefault(shard, _Shard())

    def _fenced(self, shard: int, epoch: int) -> _Shard:
        state = self._shard(shard)
        if state.owner != epoch or state.epoch > epoch:
            raise FencedError(f"s:{shard}", epoch, max(state.owner, state.epoch))
        return state

    def _fenced_by_owner(self, shard: int, epoch: int) -> _Shard:
        state = self._shard(shard)
        if state.owner != epoch:
            raise FencedError(f"s:{shard}", epoch, state.owner)
        return state

    def _write(self, state: _Shard, groups: Sequence[EntryGroup]) -> None:
        for group in groups:
            at = (group.mailbox_seq, group.event_ordinal)
            for ordinal in group.ordinals:
                address = (group.tenant_id, ordinal)
                box = state.mailboxes.setdefault(address, _Mailbox())
                if at <= box.last:
                    continue  # the entry is there already: see mailbox.lua for why
                box.entries[at], box.last = group.value, at
                if self._bound and len(box.entries) > self._bound + self._bound // 10:
                    surplus = len(box.entries) - self._bound
                    self._cut(state, address, list(box.entries)[surplus - 1][0])

    def _cut(self, state: _Shard, address: tuple[str, int], up_to_seq: int) -> None:
        state.trims[address] = up_to_seq
        box = state.mailboxes.get(address)
        if box is not None:
            box.entries = {at: value for at, value in box.entries.items() if at[0] > up_to_seq}
