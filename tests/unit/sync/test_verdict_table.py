"""T-M5, T-X8, E2, E8, A10: AUTH's verdict for every combination of signature, range, trim and epoch.

The table is told here once more, in the contract's order, and held against the service with its real
signer, mailbox rules and boundaries. Spec: §7, §11.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.errors import SyncVerdict
from qim_streams.sync.cursor import Cursor, CursorSigner
from qim_streams.sync.service import SyncService
from qim_streams.sync.verdict import Expired, Invalid, Ok, Rebased, ShardPosition, judge
from tests.support.mailbox_world import ADDRESS, MailboxWorld

CURRENT, PREVIOUS, REMOVED = b"c" * 32, b"p" * 32, b"r" * 32
SIGNER = CursorSigner(CURRENT, PREVIOUS)
W, TRIM, EPOCH, UNKNOWN_EPOCH = 9, 4, 4, 1
SIGNATURES = {
    "current key": (SIGNER, ADDRESS, True),
    "previous key": (CursorSigner(PREVIOUS), ADDRESS, True),
    "removed key": (CursorSigner(REMOVED), ADDRESS, False),
    "other device": (SIGNER, ADDRESS._replace(device_id="pad"), False),
    "other user": (SIGNER, ADDRESS._replace(user_id="ann"), False),
    "other tenant": (SIGNER, ADDRESS._replace(tenant_id="acme2"), False),
    "other shard": (SIGNER, ADDRESS._replace(shard=ADDRESS.shard + 1), False),
}
POSITIONS = (-2, -1, 0, TRIM - 1, TRIM, TRIM + 1, 6, W - 1, W, W + 1, 2**53)
EPOCHS = (0, UNKNOWN_EPOCH, 2, EPOCH - 1, EPOCH, EPOCH + 1)


async def world() -> MailboxWorld:
    """W = 9 and trim = 4 in epoch 4. Epoch 2 began at 5, epoch 3 is not on record, epoch 4 began at 7."""
    made = MailboxWorld()
    for seq in range(W + 1):
        if seq in (6, 7, 8):
            made.take_over()
        await made.write(seq)
    assert made.epochs.epoch == EPOCH
    made.trim(TRIM)
    del made.epochs.boundaries[ADDRESS.shard, UNKNOWN_EPOCH + 2]
    return made


def expected(signed: bool, position: int, epoch: int) -> tuple[str, int | None]:
    """The contract's table; with REBASED the position that is left, with AUTH_OK after_seq."""
    if not signed or not -1 <= position <= W or epoch > EPOCH:
        return "CURSOR_INVALID", None
    if position < TRIM:
        return "CURSOR_EXPIRED", None
    if epoch == EPOCH:
        return "AUTH_OK", position
    if epoch < EPOCH - 1:  # resolving it needs the boundary of epoch 3
        return "CURSOR_EXPIRED", None
    return "CURSOR_REBASED", min(position, 7)


@pytest.mark.parametrize("signature", SIGNATURES)
async def test_every_combination(signature: str) -> None:
    """One verdict each, with its fields; REBASED is followed by AUTH_OK, and never by a second REBASED."""
    made = await world()
    service = SyncService(made.store, made.epochs, made.epochs, SIGNER)
    signer, address, good = SIGNATURES[signature]
    seen = set()
    for position, epoch in product(POSITIONS, EPOCHS):
        token = signer.issue(address, epoch, position)
        name, left = expected(good, position, epoch)
        seen.add(name)
        if name == "AUTH_OK":
            opening = await service.open(ADDRESS, token)
            assert (opening.after_seq, opening.sync_to_seq) == (left, W), (position, epoch)
            continue
        with pytest.raises(SyncVerdict) as caught:
            await service.open(ADDRESS, token)
        assert caught.value.code == name, (position, epoch)
        fields = caught.value.fields
        if name != "CURSOR_REBASED":
            assert fields == ({"rebuild_required": True} if name == "CURSOR_EXPIRED" else {})
            continue
        assert left is not None
        assert fields["replay_from_seq"] == left + 1
        opening = await service.open(ADDRESS, str(fields["new_cursor"]))
        assert (opening.after_seq, opening.here.shard_epoch) == (left, EPOCH)
    verdicts = {"CURSOR_INVALID", "CURSOR_EXPIRED", "CURSOR_REBASED", "AUTH_OK"}
    assert seen == (verdicts if good else {"CURSOR_INVALID"})


SEQS = st.integers(-3, 40) | st.integers(-(2**63), 2**63 - 1)
AGES = st.integers(0, 6)


@given(
    cursor=st.none() | st.builds(Cursor, st.integers(2, 4), AGES, SEQS),
    here=st.builds(ShardPosition, st.just(3), AGES, st.integers(-1, 40), st.integers(-1, 40)),
    boundary=st.none() | st.integers(-1, 45),
)
def test_the_order_is_total(cursor: Cursor | None, here: ShardPosition, boundary: int | None) -> None:
    """Any cursor, any position of the shard: the first step of the contract's order that applies."""
    verdict = judge(cursor, here, boundary)
    if cursor is None or cursor.shard != 3 or not -1 <= cursor.last_applied <= here.lane_watermark:
        assert isinstance(verdict, Invalid)
    elif cursor.shard_epoch > here.shard_epoch:
        assert verdict == Invalid("an epoch that was never granted")
    elif cursor.last_applied < here.trim:
        assert isinstance(verdict, Expired)
    elif cursor.shard_epoch == here.shard_epoch:
        assert verdict == Ok(cursor.last_applied)
    elif boundary is None:
        assert isinstance(verdict, Expired)
    else:
        assert verdict == Rebased(min(cursor.last_applied, boundary))
