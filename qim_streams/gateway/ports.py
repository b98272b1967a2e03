"""Ports of the gateway: writers, device sessions, the presence log.

Spec: §3, §6, §7.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from qim_streams.commit.outcome import SendOutcome, SendRequest
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.quotas.rules import ALL_DEVICES

Answered = Callable[[SendOutcome], object]


class WriterLinks(Protocol):
    """The way to the writers (`commit.rpc_client`): finds owners, batches, repeats what is safe to repeat."""

    def submit(self, request: SendRequest, timeout_s: float, reply: Answered) -> None:
        """Hand a message over; never waits.

        `reply` is called on the event loop exactly once with a final outcome, UNKNOWN after `timeout_s`;
        maybe before this returns (a full queue: REFUSED OVERLOADED).
        """

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """Do a group command. AdmissionRefused: nothing was done. StoreError: repeating is safe."""


class DeviceKey(NamedTuple):
    """A device of a user."""

    tenant_id: str
    user_id: str
    device_id: str


class Login(NamedTuple):
    """How a device signs on: by which policy (`quotas.rules`), as what, and going on with which session."""

    policy: str = ALL_DEVICES
    platform: str = ""
    resumes: int | None = None


class Opened(NamedTuple):
    """A new session: its epoch, and the epochs of other devices' sessions that it ended.

    `ended_by`: there is none, because this device's session was ended by that device.
    """

    epoch: int
    ended: Mapping[str, int] = MappingProxyType({})
    ended_by: str = ""


class Newest(NamedTuple):
    """A device's newest session_epoch, 0 for an unknown device; `ended_by` which device, if that is over."""

    epoch: int
    ended_by: str = ""


DEFAULT_LOGIN: Final = Login()


class DeviceSessions(Protocol):
    """The newest session_epoch of every device. A session with an older one is void."""

    async def open(self, device: DeviceKey, now_ms: int, login: Login = DEFAULT_LOGIN) -> Opened:
        """A new session_epoch, above every one that this device had. StoreError: try again."""

    async def touch(self, devices: Sequence[DeviceKey], now_ms: int) -> list[Newest]:
        """Note that the devices are alive; the newest session of each."""
