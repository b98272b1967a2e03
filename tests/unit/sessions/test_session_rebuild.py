"""When a rebuild makes the projection vouch for a user: not before his mailbox is whole again. Spec: §9."""

from collections.abc import Sequence

from qim_streams.mailbox.ports import StoredEntry, WatermarkState
from qim_streams.placement import lane, ordinal_of
from qim_streams.records import RECIPIENT_FLAGS, UserMailboxEntry
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.projection_records import Checkpoint
from qim_streams.sessions.session_rebuild import SessionRebuild
from tests.support.session_world import NoActivity

TENANT, USER, SHARD, EPOCH = "acme", "ann", 0, 7
ORDINAL = ordinal_of(1, lane(TENANT, USER))


class Replayed:
    """A mailbox that is written again after a loss: each seq up to W is a message of another chat."""

    def __init__(self) -> None:
        self.covered = -1

    async def watermark(self, shard: int) -> WatermarkState:
        """See `MailboxReader`."""
        return WatermarkState(1, (self.covered,) * 64)

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """See `MailboxReader`."""
        return [
            StoredEntry(seq, 0, _entry(seq).encode()) for seq in range(after_seq + 1, self._end(up_to_seq))
        ]

    def _end(self, up_to_seq: int) -> int:
        return min(up_to_seq, self.covered) + 1


def _entry(seq: int) -> UserMailboxEntry:
    identity = (1_000 + seq).to_bytes(6, "big") + bytes(10)
    return UserMailboxEntry(0, identity, f"c{seq}", 1, "ben", RECIPIENT_FLAGS, 99, None)


def conversations(store: MemoryProjection) -> Sequence[str]:
    return sorted(store.rows.get((TENANT, ORDINAL), {}))


async def test_a_mailbox_that_is_written_again_is_waited_for() -> None:
    """D1, T-R2: two losses in a row. The epoch begins where mailboxes stood before the second one, so what is
    below comes from the mailbox only: who is rebuilt out of half of it is rebuilt again."""
    store, mailbox = MemoryProjection(), Replayed()
    store.stands[SHARD] = Checkpoint(EPOCH, 9, 9)  # everything up to 9 was in mailboxes when it began
    rebuild = SessionRebuild(
        store=store,
        rebuilds=store,
        mailboxes=mailbox,
        known=NoActivity(),
        shard_of=lambda *_: SHARD,
    )
    for covered in (-1, 4, 8):
        mailbox.covered = covered
        assert not await rebuild.ensure(TENANT, USER, ORDINAL), "its list may lack something"
        assert conversations(store) == [f"c{seq}" for seq in range(covered + 1)]
    mailbox.covered = 9
    assert await rebuild.ensure(TENANT, USER, ORDINAL)
    assert conversations(store) == [f"c{seq}" for seq in range(10)]
    assert await rebuild.is_complete(TENANT, USER, ORDINAL)
