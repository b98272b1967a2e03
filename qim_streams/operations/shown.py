"""Edits as readers see them: with what their targets are by now (`rules.as_seen`).

Spec: §8.
"""

from collections.abc import Sequence

from qim_streams.archive.tiers import Records
from qim_streams.operations.rules import as_seen, readable, target_seq_of
from qim_streams.records import KIND_EDIT, MessageRecord


async def see_targets(messages: list[MessageRecord | None], tiers: Sequence[Records]) -> None:
    """Replace each edit among `messages` by what is seen of it, in place.

    `tiers` are asked in turn for the targets that those before lack. Errors of a tier are raised. Without
    an edit among them nothing is read.
    """
    edits = [
        (index, (one.tenant_id, one.conversation_id, seq))
        for index, one in enumerate(messages)
        if one is not None and one.kind == KIND_EDIT and (seq := target_seq_of(one)) is not None
    ]
    for tier in tiers:
        if not edits:
            return
        missing = []
        rows = await tier.records([place for _, place in edits])
        for (index, place), row in zip(edits, rows, strict=True):
            message, target = messages[index], None if row is None else readable(row)
            if message is None or target is None:
                missing.append((index, place))
            else:
                messages[index] = as_seen(message, target)
        edits = missing
