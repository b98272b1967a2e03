"""Mapping versions: which MailboxShard a user has, and what a split does to positions.

A user belongs to a *group* for ever: the hash of tenant and user id modulo the number of shards that the
deployment began with. Member bitmaps are kept per group. Each split moves one half of the users of some
shards to new shards; which half a user is in follows from his ordinal, so every stage can tell without a
name::

    shard = group
    for each split in turn: if it has a pair (shard -> new) and that bit of the ordinal is 1: shard = new

Positions. The mailbox_seq of a shard is the offset in its dispatch partition plus the shard's `first`, which
is 0 for the shards of the beginning and above every position of the old shard for one that a split made. So
a user who moves keeps one ascending numbering: up to `end` his entries lie in the old shard, from `first` on
in the new one, and nothing is in between. No entry is copied or renumbered.

Invariants: pure; a mapping only grows; what a version says about a record never changes once the version is
known; the halves of a shard are disjoint and together the whole.

What it does not do: say when a split happens (`operation`), or where in a log (`marker`).

Spec: §2, §11.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Map
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

from qim_streams.errors import ConfigError, InvariantViolation
from qim_streams.placement import mailbox_shard

BITS_MAX: Final = 12  # splits that a single shard can go through
FIRST_STEP: Final = 1 << 40  # positions that a shard keeps free for what arrives during a split
SEQ_MAX: Final = 2**53 - 1  # scripts and JSON clients count exactly up to here
SPLITS_MAX: Final = 256
NO_POSITION: Final = -1
_MIX, _U32 = 0x9E3779B1, 0xFFFFFFFF


class Pair(NamedTuple):
    """One shard and the one that takes half of its users. `first`: the lowest mailbox_seq of `new`."""

    old: int
    new: int
    bit: int  # which bit of the mixed ordinal decides: how often `old` was split before, in its own line
    first: int


class Step(IntEnum):
    """How far a split has come. Each step is true for ever once it was written."""

    PLANNED = 0  # no marker is anywhere, and it can be abandoned
    PREPARED = 1  # the pairs stand, markers are being appended: there is no way back
    MARKED = 2  # every Outbox partition holds the marker
    SETTLED = 3  # all records of the version before are in the dispatch log: readers change over


class Split(NamedTuple):
    """A change of the mapping from version `version` - 1 to `version`.

    `begins`: ends of the Outbox partitions when it was planned, where looking for markers begins. `marks`: an
    offset per Outbox partition at or behind its first marker, from MARKED on. `ends`: per pair, the last
    mailbox_seq of the old shard that a mover can have, from SETTLED on: the ShardSplitBoundary.

    One that was abandoned is SETTLED without pairs: nobody moves, no marker and no record is of it, and its
    number is not given again.
    """

    version: int
    pairs: tuple[Pair, ...]
    step: Step
    begins: tuple[int, ...]
    marks: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class ShardMapping(NamedTuple):
    """All splits so far, oldest first. `revision` counts the changes of this record."""

    groups: int
    revision: int = 0
    splits: tuple[Split, ...] = ()

    @property
    def under_way(self) -> Split | None:
        """The split that is under way."""
        last = self.splits[-1] if self.splits else None
        return last if last is not None and last.step is not Step.SETTLED else None


class Part(NamedTuple):
    """Where positions first..through (inclusive) of a user lie."""

    shard: int
    first: int
    through: int


def mixed_bit(ordinal: int, bit: int) -> int:
    """0 or 1. The factor spreads consecutive counts of a lane evenly over both halves at every depth."""
    return (ordinal * _MIX & _U32) >> (31 - bit) & 1


class Placement:
    """A mapping, ready to be asked. Immutable. A split that may still be abandoned is none yet."""

    def __init__(self, mapping: ShardMapping) -> None:
        self.mapping = mapping
        self._begun = [split for split in mapping.splits if split.step is not Step.PLANNED]
        self._made = {pair.new: (split, pair) for split in self._begun for pair in split.pairs}
        self._moves: list[Map[int, Pair]] = [{pair.old: pair for pair in s.pairs} for s in self._begun]
        self._targets: dict[tuple[int, int], tuple[int, ...]] = {}
        self._conditions: dict[tuple[int, int], tuple[tuple[int, int], ...] | None] = {}

    @cached_property
    def version(self) -> int:
        """The version that readers use: that of the last split that is settled."""
        return sum(split.step is Step.SETTLED for split in self.mapping.splits)

    @property
    def known(self) -> int:
        """The newest version whose pairs stand: records may be of it."""
        return len(self._begun)

    @property
    def shards(self) -> int:
        """How many shards readers use."""
        return self.mapping.groups + sum(len(one.pairs) for one in self.mapping.splits[: self.version])

    def group_of(self, shard: int) -> int:
        """The group whose users the shard has some of."""
        while shard in self._made:
            shard = self._made[shard][1].old
        return shard

    def first_of(self, shard: int) -> int:
        """The mailbox_seq of offset 0 of the shard's dispatch partition."""
        made = self._made.get(shard)
        return 0 if made is None else made[1].first

    def last_of(self, shard: int, records: int) -> int:
        """The mailbox_seq of the last of so many records in the shard's dispatch partition.

        Where there is none it is the one before the shard's first, never one of an earlier shard: a reader
        whose cursor is cut there has everything that lies before it.
        """
        return self.first_of(shard) + records - 1

    def targets(self, group: int, version: int) -> tuple[int, ...]:
        """The shards that have users of a group in a version, ascending."""
        found = self._targets.get((group, version))
        if found is None:
            self._require(version)
            shards = [group]
            for moves in self._moves[:version]:
                shards += [moves[shard].new for shard in shards if shard in moves]
            found = self._targets[group, version] = tuple(sorted(shards))
        return found

    def place(self, group: int, ordinal: int, version: int) -> int:
        """The shard of a user of a group in a version."""
        shard = group
        for moves in self._moves[:version]:
            pair = moves.get(shard)
            if pair is not None and mixed_bit(ordinal, pair.bit):
                shard = pair.new
        return shard

    def shares(self, shard: int, version: int) -> bool:
        """Whether another shard has some of the group of `shard` in `version`."""
        return self._conditions_of(shard, version) != ()

    def select(self, ordinals: Iterable[int], shard: int, version: int) -> list[int]:
        """Those of a group's ordinals, in order, that `shard` has in `version`; none if it did not exist."""
        conditions = self._conditions_of(shard, version)
        if conditions is None:
            return []
        found = list(ordinals)
        for bit, wanted in conditions:
            shift = 31 - bit
            found = [one for one in found if (one * _MIX & _U32) >> shift & 1 == wanted]
        return found

    def home(self, tenant_id: str, user_id: str, ordinal: int) -> int:
        """The shard of a user as readers see it now."""
        group = mailbox_shard(tenant_id, user_id, self.mapping.groups)
        return self.place(group, ordinal, self.version) if self.version else group

    def parts(self, shard: int) -> tuple[Part, ...]:
        """Where the positions of the shard's users lie, ascending: those of shards they came from first."""
        parts = [Part(shard, self.first_of(shard), SEQ_MAX)]
        while shard in self._made:
            split, pair = self._made[shard]
            if split.step is not Step.SETTLED:
                break  # nobody reads it yet
            end = split.ends[split.pairs.index(pair)]
            shard = pair.old
            parts.append(Part(shard, self.first_of(shard), end))
        return tuple(reversed(parts))

    def _require(self, version: int) -> None:
        if version > self.known:
            raise InvariantViolation(f"mapping version {version} is not known here, only {self.known}")

    def _conditions_of(self, shard: int, version: int) -> tuple[tuple[int, int], ...] | None:
        """(bit, value) that users of `shard` have in a version, None when the shard came later."""
        key = (shard, version)
        if key not in self._conditions:
            self._conditions[key] = self._lineage(shard, version)
        return self._conditions[key]

    def _lineage(self, shard: int, version: int) -> tuple[tuple[int, int], ...] | None:
        if shard not in self.targets(self.group_of(shard), version):
            return None
        found = []
        for split in reversed(self._begun[:version]):
            for pair in split.pairs:
                if shard in (pair.old, pair.new):
                    found.append((pair.bit, int(shard == pair.new)))
                    shard = pair.old
                    break
        return tuple(reversed(found))


# -- positions


def covered(parts: Sequence[Part], watermarks: Sequence[int]) -> int:
    """W of a user whose positions lie in `parts`, from W of his lane in each of their shards.

    A later part shows nothing before the earlier one is complete; the numbers between two parts hold nothing.
    """
    through = watermarks[0]
    for before, part, watermark in zip(parts, parts[1:], watermarks[1:], strict=False):
        if through < before.through:
            return through
        through = max(part.first - 1, watermark)
    return through


def trimmed(parts: Sequence[Part], trims: Sequence[int]) -> int:
    """effective_trim of such a user, from that in each shard."""
    return max(min(trim, part.through) for part, trim in zip(parts, trims, strict=True))


def stretch(parts: Sequence[Part], after_seq: int, up_to_seq: int) -> list[tuple[int, int, int]]:
    """(shard, after, up_to) that together are (after_seq, up_to_seq], ascending, empty ones left out."""
    found = []
    for part in parts:
        after, up_to = max(after_seq, part.first - 1), min(up_to_seq, part.through)
        if up_to > after:
            found.append((part.shard, after, up_to))
    return found


def distance(parts: Sequence[Part], after_seq: int, up_to_seq: int) -> int:
    """How many numbers of (after_seq, up_to_seq] can hold an entry."""
    return sum(up_to - after for _, after, up_to in stretch(parts, after_seq, up_to_seq))


def boundary_within(parts: Sequence[Part], shard: int, boundary: int | None) -> int | None:
    """What a boundary of epochs of `shard`, one of `parts`, means to a user: nothing of other parts.

    Positions of earlier parts are not the shard's, and positions behind its part are not the user's.
    """
    if boundary is None:
        return None
    part = next(one for one in parts if one.shard == shard)
    return min(max(boundary, part.first - 1), part.through)


# -- the steps of a split


def plan(
    mapping: ShardMapping, olds: Sequence[int], ends: Map[int, int], begins: Sequence[int], partitions: int
) -> ShardMapping:
    """The mapping with a planned split of the shards `olds`.

    `ends`: how many records each of them has, `begins`: the ends of the Outbox partitions,
    `partitions`: of the dispatch log. ConfigError: this split is not possible, with the reason.
    """
    if mapping.under_way is not None:
        raise ConfigError(
            f"a split (to mapping version {mapping.under_way.version}) is under way: finish it first"
        )
    placement = Placement(mapping)
    if not olds or len(set(olds)) != len(olds) or any(not 0 <= one < placement.shards for one in olds):
        raise ConfigError(f"shards: each of 0 to {placement.shards - 1} at most once, not {list(olds)}")
    if placement.shards + len(olds) > partitions:
        raise ConfigError(
            f"{placement.shards + len(olds)} shards need as many partitions of the dispatch log, and it has "
            f"{partitions}: set QIM_MAILBOX_SHARDS_MAX, and see docs/decisions/0021-shard-split.md"
        )
    if len(mapping.splits) >= SPLITS_MAX:
        raise ConfigError(f"the mapping has {SPLITS_MAX} splits, more are not kept")
    pairs = []
    for number, old in enumerate(sorted(olds)):
        bit = _depth(mapping, old)
        first = ((placement.last_of(old, ends[old]) + 1) // FIRST_STEP + 1) * FIRST_STEP
        if bit >= BITS_MAX or first + FIRST_STEP > SEQ_MAX:
            raise ConfigError(f"shard {old} was split {bit} times: it cannot be split again")
        pairs.append(Pair(old, placement.shards + number, bit, first))
    split = Split(len(mapping.splits) + 1, tuple(pairs), Step.PLANNED, tuple(begins))
    return ShardMapping(mapping.groups, mapping.revision + 1, (*mapping.splits, split))


def _depth(mapping: ShardMapping, shard: int) -> int:
    """How many bits of the ordinal are used up in the line of a shard."""
    depth = 0
    for split in mapping.splits:
        for pair in split.pairs:
            if shard in (pair.old, pair.new):
                depth = max(depth, pair.bit + 1)
    return depth


def prepared(mapping: ShardMapping) -> ShardMapping:
    """The mapping once markers may be appended."""
    return _replaced(mapping, _open_in(mapping, Step.PLANNED)._replace(step=Step.PREPARED))


def abandoned(mapping: ShardMapping) -> ShardMapping:
    """The mapping once a split whose markers nobody may append any more is given up."""
    return _replaced(mapping, without_pairs(_open_in(mapping, Step.PLANNED)))


def without_pairs(split: Split) -> Split:
    """What is left of a split that was abandoned."""
    return Split(split.version, (), Step.SETTLED, split.begins)


def marked(mapping: ShardMapping, marks: Sequence[int]) -> ShardMapping:
    """The mapping once every Outbox partition has its marker, at or before the offset in `marks`."""
    split = _open_in(mapping, Step.PREPARED)
    if len(marks) != len(split.begins) or any(one < at for one, at in zip(marks, split.begins, strict=True)):
        raise InvariantViolation(f"marks {list(marks)} before {list(split.begins)}: not those of this split")
    return _replaced(mapping, split._replace(step=Step.MARKED, marks=tuple(marks)))


def settled(mapping: ShardMapping, ends: Map[int, int]) -> ShardMapping:
    """The mapping once all records of the version before are in the dispatch log.

    `ends`: how many records each old shard has, read after that.
    """
    split, placement = _open_in(mapping, Step.MARKED), Placement(mapping)
    found = tuple(placement.last_of(pair.old, ends[pair.old]) for pair in split.pairs)
    for pair, end in zip(split.pairs, found, strict=True):
        if end >= pair.first:
            raise InvariantViolation(f"shard {pair.old} ends at {end}, where shard {pair.new} begins")
    return _replaced(mapping, split._replace(step=Step.SETTLED, ends=found))


def _open_in(mapping: ShardMapping, step: Step) -> Split:
    split = mapping.under_way
    if split is None or split.step is not step:
        raise InvariantViolation(f"no split is {step.name}: {split}")
    return split


def _replaced(mapping: ShardMapping, split: Split) -> ShardMapping:
    return ShardMapping(mapping.groups, mapping.revision + 1, (*mapping.splits[:-1], split))
