"""PushDevices: registers and removes devices, keeps users' settings, buries dead tokens.

The device log (compacted, by the user's MailboxShard) is the authority: the mailbox stages follow it, and
what Redis has lost is put back from it. So a registration goes to the log first and to the store then; what
the store has, the log has. A removal goes to the store first, which ends notifications that are on their way,
then to the log, then to the store again: a restore that was under way may have put the row back in between.

A token belongs to one device: whoever registers it takes it from whoever had it, so that a telephone that
changes hands or accounts shows nobody else's messages.

Every call may be repeated; after an error the outcome is unknown until it is.

Spec: §6. Scenario H5.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final

from qim_streams import limits
from qim_streams.errors import AdmissionRefused
from qim_streams.log_ports import LogAppender, Outgoing
from qim_streams.notification import metrics
from qim_streams.notification.ports import DeviceStore
from qim_streams.notification.records import SETTINGS_NAME, PushDevice, PushSettings
from qim_streams.notification.rules import time_zone
from qim_streams.placement import mailbox_shard
from qim_streams.records import record_key
from qim_streams.wire.answers import shown

log = logging.getLogger(__name__)

REASON_MAX: Final = 64
DEVICE_TOPIC: Final = "qim.push-device.v1"


class PushDevices:
    """`providers` are those that devices may register for; `now_ms` is the wall clock."""

    def __init__(
        self,
        store: DeviceStore,
        log_appender: LogAppender,
        *,
        providers: Collection[str],
        mailbox_shards: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._log, self._shards, self._now_ms = store, log_appender, mailbox_shards, now_ms
        self.providers = tuple(providers)

    async def register(self, device: PushDevice) -> PushDevice:
        """Notify this device from now on; its `version` is given here. AdmissionRefused FIELD_INVALID."""
        self._check(device)
        (row,) = await self._store.load([(*device[:2], device.device_id)])
        before = row.device
        version = self._now_ms() if before is None else max(self._now_ms(), before.version + 1)
        device = device._replace(version=version, dead="")
        if before is not None and device._replace(version=before.version, extra=before.extra) == before:
            return before
        await self._append(device.tenant_id, device.user_id, device.device_id, device.encode())
        gone = await self._store.put(device)
        if gone is not None:
            await self._append(device.tenant_id, device.user_id, gone, None)
        former = await self._store.claim_token(device)
        if former is not None:
            await self._take_away(device, former)
        metrics.REGISTRATIONS.labels("registered").inc()
        return device

    async def unregister(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """Notify a device no more, notifications on their way included; an unknown one, too."""
        await self._store.remove(tenant_id, user_id, device_id)
        await self._append(tenant_id, user_id, device_id, None)
        await self._store.remove(tenant_id, user_id, device_id)
        metrics.REGISTRATIONS.labels("removed").inc()

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """The user's devices, dead ones included."""
        return await self._store.devices(tenant_id, user_id)

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings:
        """The user's settings, or those of a user who has set nothing."""
        return await self._store.settings(tenant_id, user_id) or PushSettings(tenant_id, user_id)

    async def change_settings(self, settings: PushSettings) -> PushSettings:
        """Keep settings; their `version` is given here. AdmissionRefused FIELD_INVALID."""
        if time_zone(settings.time_zone) is None:
            raise AdmissionRefused("FIELD_INVALID", f"time_zone: there is no zone {settings.time_zone!r}")
        before = await self.settings(settings.tenant_id, settings.user_id)
        settings = settings._replace(version=max(self._now_ms(), before.version + 1))
        await self._append(settings.tenant_id, settings.user_id, SETTINGS_NAME, settings.encode())
        await self._store.put_settings(settings)
        return settings

    async def bury(self, device: PushDevice, reason: str) -> None:
        """The provider will never take this token again. A newer registration stands.

        `reason` is the provider's own word, whatever that is: it is told to the device at its next sign-on,
        in a frame that holds no control characters.
        """
        reason = shown(reason, REASON_MAX) or "?"
        if await self._store.bury(device, reason):
            dead = device._replace(token="", dead=reason)
            await self._append(device.tenant_id, device.user_id, device.device_id, dead.encode())
            metrics.REGISTRATIONS.labels("dead").inc()

    async def dead_reason(self, tenant_id: str, user_id: str, device_id: str) -> str | None:
        """Why the device's token is dead; None: it is not, or there is none."""
        (row,) = await self._store.load([(tenant_id, user_id, device_id)])
        return row.device.dead or None if row.device is not None else None

    def _check(self, device: PushDevice) -> None:
        if device.provider not in self.providers:
            known = ", ".join(self.providers) or "none"
            raise AdmissionRefused(
                "FIELD_INVALID", f"provider: {device.provider} is not served, only {known}"
            )
        if not 0 < len(device.token) <= limits.PUSH_TOKEN_MAX:
            raise AdmissionRefused("FIELD_INVALID", f"token: needs 1 to {limits.PUSH_TOKEN_MAX} characters")

    async def _take_away(self, device: PushDevice, former: tuple[str, str, str]) -> None:
        """Another device's registration of the same token, unless it has another by now."""
        (row,) = await self._store.load([former])
        if row.device is not None and row.device.token == device.token:
            await self.unregister(*former)

    async def _append(self, tenant_id: str, user_id: str, name: str, value: bytes | None) -> None:
        partition = mailbox_shard(tenant_id, user_id, self._shards)
        await self._log.append(
            [Outgoing(DEVICE_TOPIC, partition, record_key(tenant_id, user_id, name), value)]
        )
