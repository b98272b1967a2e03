"""From push batches to live streams: who gets which event, what is stale, who is ready.

Invariants: an event goes only to the session whose connection_id, session_epoch, tenant and shard the
batch names; events of one session keep the order of the log; what one poll has for a session goes out
together.

Spec: §6.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from qim_streams import failpoints
from qim_streams.gateway.metrics import PUSHED_SECONDS
from qim_streams.gateway.presence import Notice, Said
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.mentions import may_name, type_in_body
from qim_streams.records import PushBatch
from qim_streams.sync.pull import PulledEvent

RECIPIENTS_PER_TURN_MAX: Final = 2_000  # then other work of the loop gets its turn


class _Waiting:
    """What one poll has for the sessions so far: session -> (epoch of the sender, events)."""

    def __init__(self) -> None:
        self.events: dict[ClientSession, tuple[int, list[PulledEvent]]] = {}
        self.count = 0

    def add(self, session: ClientSession, epoch: int, event: PulledEvent) -> None:
        """Append an event; events of another sender go out first."""
        part = self.events.get(session)
        if part is not None and part[0] == epoch:
            part[1].append(event)
        else:
            if part is not None:
                self.flush(session)
            self.events[session] = (epoch, [event])
        self.count += 1

    def flush(self, session: ClientSession) -> None:
        """Hand over what waits for one session."""
        part = self.events.pop(session, None)
        if part is not None and session.feed is not None:
            session.feed.push(*part)
            failpoints.hit("gateway.push_partial")

    def flush_all(self) -> None:
        """Hand over everything."""
        events, self.events = self.events, {}
        self.count = 0
        for session, part in events.items():
            if session.feed is not None:
                session.feed.push(*part)
                failpoints.hit("gateway.push_partial")


class Deliveries:
    """Expands push batches to the sessions of this gateway."""

    def __init__(self, services: Services) -> None:
        self._all = services

    async def deliver(self, batches: Sequence[PushBatch]) -> None:
        """Hand the events and promises of `batches`, in log order, to the sessions."""
        waiting, stale = _Waiting(), dict[int, int]()
        for batch in batches:
            self._collect(batch, waiting, stale)
            for ready in batch.ready:
                session = self._find(batch, ready.connection_id, ready.session_epoch)
                if session is not None and session.feed is not None:
                    waiting.flush(session)
                    session.feed.ready(batch.fencing_epoch, ready.from_seq)
            if waiting.count > RECIPIENTS_PER_TURN_MAX:
                waiting.flush_all()
                await asyncio.sleep(0)
        waiting.flush_all()
        self._observe(batches)
        if stale:
            self._report(stale)

    def _collect(self, batch: PushBatch, waiting: _Waiting, stale: dict[int, int]) -> None:
        get, where, epoch = (
            self._all.registry.get,
            (batch.tenant_id, batch.mailbox_shard),
            batch.fencing_epoch,
        )
        for seq, ordinal, body, recipients, _ in batch.items:
            names = may_name(body)
            for connection_id, session_epoch, event_id, flags, mention, client_message_id in recipients:
                session = get(connection_id)
                if session is None or session.session_epoch != session_epoch or session.place != where:
                    self._all.counters.stale_recipients += 1
                    stale[connection_id] = batch.mailbox_shard
                    continue
                if names:
                    mention = type_in_body(body, session.address.user_id)
                event = PulledEvent(seq, ordinal, event_id, flags, mention, client_message_id, body)
                waiting.add(session, epoch, event)

    def _find(self, batch: PushBatch, connection_id: int, session_epoch: int) -> ClientSession | None:
        session: ClientSession | None = self._all.registry.get(connection_id)
        if session is None or session.session_epoch != session_epoch:
            return None
        return session if session.place == (batch.tenant_id, batch.mailbox_shard) else None

    def _report(self, stale: Mapping[int, int]) -> None:
        """PRESENCE_STALE: tombstones for sessions that ended here and are still pushed to, by which shard."""
        for connection_id, shard in stale.items():
            for device, session_epoch in self._all.registry.take_ended([connection_id]):
                if self._all.registry.of_device(device) is None:
                    self._all.presence.say(device, Notice(Said.GONE, session_epoch, shard=shard))

    def _observe(self, batches: Sequence[PushBatch]) -> None:
        oldest = min((item.committed_at for batch in batches for item in batch.items), default=None)
        if oldest is not None:
            PUSHED_SECONDS.observe(max(0, self._all.now_ms() - oldest) / 1_000)
