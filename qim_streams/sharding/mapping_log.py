"""How a mapping is remembered: one record per revision in ``qim.mapping.v1``, which keeps them for ever.

The log decides who was first. A record counts if its revision is one above that of the last one that counts
and it continues it; of two records with the same revision the first one stands, whoever wrote it, and every
reader sees the same. So a writer appends, reads the log back, and knows whether what stands is its own: no
lease, and a writer that slept through somebody else's step has no effect.

Pure. Spec: §11.
"""

from collections.abc import Iterable
from typing import Final

from qim_streams.codec import Layout, pack_fields
from qim_streams.errors import ConfigError, RecordError
from qim_streams.sharding.rules import Pair, ShardMapping, Split, Step, without_pairs

MAPPING_TOPIC: Final = "qim.mapping.v1"

_PAIR = tuple[int, int, int, int]
_SPLIT = tuple[int, tuple[_PAIR, ...], int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_MAPPING = Layout("ShardMapping", int, int, tuple[_SPLIT, ...])


def encode(mapping: ShardMapping) -> bytes:
    """The bytes of a revision."""
    return pack_fields(tuple(mapping))


def key_of(mapping: ShardMapping) -> bytes:
    """The record's key: of its own for each revision, so that compaction removes none."""
    return b"%d" % mapping.revision


def decode(data: bytes) -> ShardMapping:
    """A mapping from its bytes; RecordError if they are not one."""
    groups, revision, splits = _MAPPING.read(data)[:3]
    try:
        return ShardMapping(
            groups,
            revision,
            tuple(
                Split(version, tuple(Pair(*pair) for pair in pairs), Step(step), *rest)
                for version, pairs, step, *rest in splits
            ),
        )
    except ValueError as error:
        raise RecordError(f"ShardMapping: {error}") from error


def fold(mapping: ShardMapping, values: Iterable[bytes]) -> ShardMapping:
    """What stands after more records of the log. A record that does not continue what stands is left out.

    RecordError for bytes that are no mapping: then nobody may guess. ConfigError: other groups.
    """
    for value in values:
        found = decode(value)
        if found.groups != mapping.groups:
            raise ConfigError(
                f"mailbox_shards is {mapping.groups}, and this deployment began with {found.groups}: it "
                f"cannot be changed, set QIM_MAILBOX_SHARDS={found.groups} (splits are counted on top)"
            )
        if continues(mapping, found):
            mapping = found
    return mapping


def continues(before: ShardMapping, after: ShardMapping) -> bool:
    """Whether `after` is one step on from `before`: everything that was known still holds."""
    if after.revision != before.revision + 1 or after.groups != before.groups:
        return False
    was, now = before.splits, after.splits
    if len(now) == len(was) + 1:
        return now[:-1] == was and before.under_way is None and now[-1].step <= Step.PREPARED
    if len(now) != len(was) or not was or now[:-1] != was[:-1]:
        return False
    if was[-1].step is Step.PLANNED and now[-1] == without_pairs(was[-1]):
        return True  # abandoned
    same = now[-1].pairs == was[-1].pairs and now[-1].begins == was[-1].begins
    return same and now[-1].step == was[-1].step + 1
