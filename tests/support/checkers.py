"""Checkers over dumps of the logs and samples of the stores: what a history of clients does not show. Pure.

Written from the contract alone, with formulas of their own; nothing of the product is imported. The other
half, over the clients' histories, is `qim_streams.testing.oracle` (I1 I2 I3 I5 I11) and ``evidence``
(I4 I6 I8 I9). Each check returns one sentence per violation.

Spec: §2, §4, §5, §11, §14. I6 I7 I9 I10 I12 I13 I14 I15 I16 I17 I18.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from blake3 import blake3

Coordinates = tuple[str, int, int]  # topic, partition, offset


class OutboxRow(NamedTuple):
    """A record of the Outbox. `fence`: the highest epoch of a barrier before it, 0 for none."""

    partition: int
    offset: int
    epoch: int
    fence: int
    message_id: bytes
    key: str  # client_message_id
    raw: bytes  # the message

    @property
    def counts(self) -> bool:
        """Whether readers take it: no newer owner's barrier lies before it."""
        return self.epoch >= self.fence


class DispatchRow(NamedTuple):
    """A record of the dispatch log. `content`: everything but epoch and place of its Outbox record."""

    shard: int  # the partition it lies in
    offset: int
    target: int
    dispatch_id: bytes
    message_id: bytes
    outbox_offset: int
    content: tuple[object, ...]
    raw: bytes


class ShardSample(NamedTuple):
    """What the store said of a shard at one instant: epoch granted, epoch of W's last writer, W by lane."""

    shard: int
    granted: int
    writer: int
    lanes: tuple[int, ...]


class CommitSample(NamedTuple):
    """A committed offset (the next one to be read), and how far its effects are durable, read after it."""

    group: str
    partition: int
    committed: int
    durable_through: int


class FanoutSample(NamedTuple):
    """A committed Outbox offset of fan-out, and the ends of the dispatch log, read after it."""

    partition: int
    committed: int
    ends: Mapping[int, int]


class Letter(NamedTuple):
    """A dead letter: who wrote it, where the record lay, its bytes."""

    role: str
    at: Coordinates
    value: bytes


class CursorAnswer(NamedTuple):
    """A cursor and what AUTH said to it. `answer`: AUTH_OK or an error's name."""

    user: str
    position: int
    epoch: int
    trim: int
    granted: int  # the shard's epoch at the time of the answer
    answer: str


# -- I6, I7: the watermark


def went_back(shard: int, before: Sequence[int], now: Sequence[int]) -> list[str]:
    """I6: no lane of W goes back."""
    if len(now) != len(before) or any(new < old for new, old in zip(now, before, strict=True)):
        return [f"I6: W of shard {shard} went back from {min(before)} to {min(now, default=None)}"]
    return []


def undrained(stands: Mapping[int, Sequence[int]], ends: Mapping[int, int]) -> list[str]:
    """I7: after healing W of every lane is at the end of the dispatch log (`ends` are exclusive)."""
    return [
        f"I7: W of shard {shard} is {min(stands.get(shard, (-1,)))}, the log ends at {end - 1}"
        for shard, end in sorted(ends.items())
        if end and min(stands.get(shard, (-1,))) < end - 1
    ]


# -- I9: cursors


def answers_are_explicit(answers: Iterable[CursorAnswer]) -> list[str]:
    """I9: below the trim EXPIRED, of an older epoch REBASED, else AUTH_OK; in this order."""
    bad = []
    for one in answers:
        wanted = "AUTH_OK"
        if one.position < one.trim:
            wanted = "CURSOR_EXPIRED"
        elif one.epoch < one.granted:
            wanted = "CURSOR_REBASED"
        if one.answer != wanted:
            bad.append(
                f"I9: {one.user}'s cursor ({one.position}, epoch {one.epoch}; trim {one.trim}, epoch "
                f"{one.granted}) was answered {one.answer}, not {wanted}"
            )
    return bad


# -- I10: dispatches


def shard_of(tenant: str, user: str, shards: int) -> int:
    """The MailboxShard of a user, from the contract's rule."""
    digest = blake3(b"qim.shard\0" + tenant.encode() + b"\0" + user.encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards


def dispatch_id_of(message_id: bytes, shard: int) -> bytes:
    """The dispatch id, from the contract's rule."""
    return blake3(b"qim.group-dispatch.v1\0" + message_id + shard.to_bytes(4, "big")).digest()[:16]


def event_id_of(message_id: bytes, user: str) -> bytes:
    """The id of a plain message's event, from the contract's rule."""
    return blake3(b"qim.event.v1\0" + message_id + b"\0\0" + user.encode()).digest()[:16]


def dispatches_are_determined(
    rows: Iterable[DispatchRow], wanted: Mapping[bytes, Set[int]], strangers: Set[bytes] = frozenset()
) -> list[str]:
    """I10: every message has one dispatch for each of its shards, and whatever was repeated is the same.

    `wanted`: message_id -> shards of its members. Messages of neither `wanted` nor `strangers` are no
    messages. Repeats of one Outbox record are equal byte by byte; those of its copies in all but its place.
    """
    bad = []
    bytes_of: dict[tuple[bytes, int], bytes] = {}
    content_of: dict[bytes, tuple[object, ...]] = {}
    found: dict[bytes, set[int]] = defaultdict(set)
    for one in rows:
        if one.message_id in strangers:
            continue
        where = f"the dispatch at {one.shard}/{one.offset}"
        if one.message_id not in wanted:
            bad.append(f"I10: {where} is of {one.message_id.hex()}, which is no message of the Outbox")
            continue
        if one.shard != one.target or one.dispatch_id != dispatch_id_of(one.message_id, one.target):
            bad.append(f"I10: {where} lies in another shard than it names, or has another id than they make")
        if bytes_of.setdefault((one.dispatch_id, one.outbox_offset), one.raw) != one.raw:
            bad.append(f"I10: {where} repeats {one.dispatch_id.hex()} with other bytes")
        if content_of.setdefault(one.dispatch_id, one.content) != one.content:
            bad.append(f"I10: {where} repeats {one.dispatch_id.hex()} with another content")
        found[one.message_id].add(one.target)
    for message_id, shards in wanted.items():
        if found[message_id] != shards:
            bad.append(
                f"I10: {message_id.hex()} was dispatched to {sorted(found[message_id])}, "
                f"its members are in {sorted(shards)}"
            )
    return bad


# -- I12, I13: archive and session lists


def archive_is_outbox(archived: Mapping[object, bytes | None], outbox: Mapping[object, bytes]) -> list[str]:
    """I12: below its watermark the archive has every message of the Outbox, with its bytes."""
    return [
        f"I12: {place} is not in the archive as it is in the Outbox"
        for place, raw in outbox.items()
        if archived.get(place) != raw
    ]


def trimmed_only_archived(heads: Mapping[str, tuple[int, int]]) -> list[str]:
    """I12: conversation -> (first seq in the hot tier, last archived seq): nothing went unarchived."""
    return [
        f"I12: the hot tier of {name} begins at {hot_from}, the archive ends at {archived}"
        for name, (hot_from, archived) in heads.items()
        if hot_from > archived + 1
    ]


def list_differs(
    user: str,
    rows: Mapping[str, int],
    behind: Set[str],
    wanted: Mapping[str, int],
    said: Set[tuple[str, int]],
) -> list[str]:
    """I13: a user's list has the conversations of his mailbox, each at the time of its newest message.

    `behind`: rows that may be older (their head has the time). `said`: (conversation, time) of every
    message; a later time that is none of them is that of a join.
    """
    return [
        f"I13: {user} has {name} at {rows.get(name)} in the list, and at {wanted.get(name)} in the mailbox"
        for name in sorted(rows.keys() | wanted.keys())
        if rows.get(name) != wanted.get(name)
        and not (rows.get(name, 0) > wanted.get(name, 0) and (name, rows[name]) not in said)
        and not (name in behind and 0 < rows.get(name, 0) <= wanted.get(name, 0))
    ]


# -- I14: fencing


def left_out_has_no_effect(
    outbox: Sequence[OutboxRow], dispatched: Set[bytes], acked: Mapping[str, bytes]
) -> list[str]:
    """I14: what an old owner appended behind a newer one's barrier is neither dispatched nor acknowledged.

    `acked`: client_message_id -> message_id as a client was told.
    """
    counted = {one.message_id for one in outbox if one.counts}
    bad = []
    for one in outbox:
        if one.counts or one.message_id in counted:
            continue
        where = f"{one.key} at {one.partition}/{one.offset}, epoch {one.epoch} behind {one.fence},"
        if one.message_id in dispatched:
            bad.append(f"I14: {where} was dispatched")
        if acked.get(one.key) == one.message_id:
            bad.append(f"I14: {where} was acknowledged")
    return bad


def written_under_the_newest(samples: Iterable[ShardSample]) -> list[str]:
    """I14: epochs do not go back, and after a grant W moves under it or a newer one only."""
    bad = []
    last: dict[int, ShardSample] = {}
    for now in samples:
        before = last.get(now.shard)
        last[now.shard] = now
        if before is None:
            continue
        if now.granted < before.granted:
            bad.append(f"I14: shard {now.shard} was granted {before.granted} and later {now.granted}")
        if now.lanes != before.lanes and now.writer < before.granted:
            bad.append(
                f"I14: W of shard {now.shard} moved under epoch {now.writer}, {before.granted} was granted"
            )
    return bad


# -- I15: dead letters


def letters_are_the_poison(
    poison: Mapping[Coordinates, bytes],
    readers: Mapping[str, Sequence[str]],
    letters: Sequence[Letter],
    *,
    once: bool = True,
) -> list[str]:
    """I15: every reader of a topic set each injected record aside, whole, and nothing else.

    `readers`: topic -> roles that must. `once` False: a death between letter and note may repeat one.
    """
    bad = []
    counts = Counter((letter.role, letter.at) for letter in letters)
    for letter in letters:
        original = poison.get(letter.at)
        if original is None:
            bad.append(f"I15: {letter.role} set {letter.at} aside, which is no poison")
        elif original != letter.value:
            bad.append(f"I15: {letter.role} set {letter.at} aside with other bytes")
    for at in poison:
        for role in readers[at[0]]:
            count = counts[role, at]
            if not count:
                bad.append(f"I15: {role} did not set {at} aside")
            elif count > 1 and once:
                bad.append(f"I15: {role} set {at} aside {count} times")
    return bad


# -- I16: tenants


def isolated(bodies: Iterable[tuple[str, str, bytes]], marks: Mapping[str, bytes]) -> list[str]:
    """I16: (tenant, user, text that he was shown): none holds the mark of another tenant."""
    return [
        f"I16: {user} of {tenant} was shown something of {other}"
        for tenant, user, text in bodies
        for other, mark in marks.items()
        if other != tenant and mark in text
    ]


# -- I17, I18: offsets and bounds


def commits_follow_effects(samples: Iterable[CommitSample]) -> list[str]:
    """I17: no group has committed a record whose effect was not durable."""
    return [
        f"I17: {one.group} committed {one.committed} of partition {one.partition}, durable is only what lies "
        f"up to {one.durable_through}"
        for one in samples
        if one.committed > one.durable_through + 1
    ]


def fanout_follows_effects(
    samples: Iterable[FanoutSample], outbox: Sequence[OutboxRow], dispatches: Iterable[DispatchRow]
) -> list[str]:
    """I17: what fan-out committed of the Outbox was dispatched, to all its shards, before."""
    first: dict[bytes, dict[int, int]] = defaultdict(dict)
    for one in dispatches:
        shards = first[one.message_id]
        shards[one.target] = min(one.offset, shards.get(one.target, one.offset))
    bad = []
    rows = sorted(row for row in outbox if row.counts)
    for sample in samples:
        for row in rows:
            if row.partition != sample.partition or row.offset >= sample.committed:
                continue
            late = [s for s, offset in first[row.message_id].items() if offset >= sample.ends.get(s, 0)]
            if late or not first[row.message_id]:
                bad.append(
                    f"I17: fan-out committed {sample.committed} of partition {sample.partition} before "
                    f"{row.key} at {row.offset} was in {late or 'any shard'}"
                )
    return bad


def within_bounds(peaks: Mapping[str, Mapping[str, float]], bounds: Mapping[str, float]) -> list[str]:
    """I18: what a process used at most (kind -> amount) stays below the bound of its kind."""
    return [
        f"I18: {process} came to {amount:g} {kind}, the bound is {bounds[kind]:g}"
        for process, used in peaks.items()
        for kind, amount in used.items()
        if amount > bounds[kind]
    ]
