"""On how many devices a user may be: the tenant's rule, who has to go, and how he is told.

A login is decided in one step in the store of device sessions, which marks the sessions that it ends. Their
gateways are told over the signal bus at once; should that be lost they see the mark when they look at the
device's session_epoch: a second after the login, whenever the bus was away, and at each refresh of presence.

A session that was ended does not come back by itself: a client that connects again says which session it
goes on with (AUTH `resumes`), and is told the reason if that one was ended. Without it somebody signs on.

Invariants: a signal names the epoch that it ends, so a late one harms no later login of that device.

Spec: §6, §7.
"""

from collections.abc import Callable, Mapping
from typing import Final

from qim_streams.errors import SyncVerdict
from qim_streams.gateway.ports import DeviceKey, DeviceSessions, Login
from qim_streams.gateway.signals import SignalBus
from qim_streams.quotas.rules import ALL_DEVICES
from qim_streams.quotas.service import RulesCache
from qim_streams.sessions.ports import SessionUser

CODE: Final = "LOGGED_IN_ELSEWHERE"
MARK: Final = b"\xc1"  # no frame begins with it: it is the one byte that msgpack never uses
CHECK_S: Final = 1.0  # after the login of a device that others may end, when the bus listens for it surely


class Logins:
    """The logins of one gateway."""

    def __init__(
        self,
        devices: DeviceSessions,
        rules: RulesCache,
        default_policy: str,
        bus: SignalBus,
        now_ms: Callable[[], int],
    ) -> None:
        self._devices, self._rules, self._default = devices, rules, default_policy
        self._bus, self._now_ms = bus, now_ms

    async def open(
        self, user: SessionUser, device_id: str, platform: str | None, resumes: int | None
    ) -> tuple[int, bool]:
        """A new session_epoch, and whether other devices may end this session; those it ends are told.

        SyncVerdict LOGGED_IN_ELSEWHERE: the session that wants to go on was ended. StoreError: try again.
        """
        policy = (await self._rules.of(user.tenant_id)).multi_login or self._default
        device = DeviceKey(user.tenant_id, user.user_id, device_id)
        opened = await self._devices.open(device, self._now_ms(), Login(policy, platform or "", resumes))
        if opened.ended_by:
            raise SyncVerdict(CODE, reason(opened.ended_by))
        if opened.ended:
            self._bus.tell(user, device_id, signal(device_id, opened.ended))
        return opened.epoch, policy != ALL_DEVICES


def signal(by: str, ended: Mapping[str, int]) -> bytes:
    """What the gateways are told: sessions of these devices up to these epochs have ended."""
    words = [by, *(word for device, epoch in ended.items() for word in (device, str(epoch)))]
    return MARK + "\0".join(words).encode()


def ended_by(data: bytes, device_id: str, session_epoch: int) -> str | None:
    """The device whose login ended this session, by a signal; None when it did not."""
    by, *words = data[len(MARK) :].decode("utf-8", "replace").split("\0")
    ended = dict(zip(words[::2], words[1::2], strict=False))
    epoch = ended.get(device_id, "")
    return by if epoch.isdecimal() and session_epoch <= int(epoch) else None


def reason(by: str) -> str:
    """For the detail of the ERROR."""
    return f"device {by} has signed on, and one of the two has to go"
