"""Ports of the gateway: writers, device sessions, the presence log.

Spec: §3, §6, §7.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from qim_streams.commit.outcome import SendOutcome, SendRequest
from qim_streams.membership.commands import GroupCommand, GroupState

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


class DeviceSessions(Protocol):
    """The newest session_epoch of every device. A session with an older one is void."""

    async def open(self, device: DeviceKey, now_ms: int) -> int:
        """A new session_epoch, above every one that this device had. StoreError: try again."""

    async def touch(self, devices: Sequence[DeviceKey], now_ms: int) -> list[int]:
        """Note that the devices are alive; their newest session_epoch, 0 for an unknown device."""
