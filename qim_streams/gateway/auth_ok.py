"""AUTH_OK: what a device is told when its session is open. Pure but for the spread of the sync delay.

Spec: §7.
"""

from typing import Protocol

from qim_streams.gateway.services import Services
from qim_streams.sessions.badges import UserTotals
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.service import Opening
from qim_streams.wire.frames import AuthOk


class Signed(Protocol):
    """A session that has signed on."""

    connection_id: int
    session_epoch: int

    @property
    def address(self) -> MailboxAddress:
        """Whose mailbox."""


def auth_ok(services: Services, session: Signed, rid: int, opening: Opening, found: UserTotals) -> AuthOk:
    """The answer to AUTH."""
    totals = found.totals
    settings, address, here = services.settings, session.address, opening.here
    return AuthOk(
        rid=rid,
        user_id=address.user_id,
        tenant_id=address.tenant_id,
        device_id=address.device_id,
        session_epoch=session.session_epoch,
        connection_id=str(session.connection_id),
        shard_epoch=here.shard_epoch,
        lane_id=address.lane,
        lane_watermark=here.lane_watermark,
        trim_watermark=here.trim,
        after_seq=opening.after_seq,
        sync_to_seq=opening.sync_to_seq,
        has_offline=opening.pending_entries > 0,
        pending_entry_count_hint=opening.pending_entries,
        pending_bytes_hint=opening.pending_bytes,
        total_unread=totals.unread,
        total_mention=totals.mentions,
        muted_unread=totals.muted_unread,
        projection_complete=totals.complete and _holds(found.mailbox_seq, opening),
        sync_delay_hint_ms=services.sync_delay_ms() if opening.pending_entries else 0,
        next_ping_interval_ms=settings.ping_interval_ms,
        preferred_endpoint=settings.gateway_public_url or None,
    )


def _holds(counted_to: int, opening: Opening) -> bool:
    """Whether what was counted has every entry that the device hears of: the list may be a moment behind."""
    if opening.pending_entries == 0:  # nothing of this user lies between cursor and sync_to_seq
        return counted_to >= min(opening.after_seq, opening.sync_to_seq)
    return counted_to >= opening.sync_to_seq
