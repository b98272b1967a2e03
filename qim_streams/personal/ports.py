"""What collecting and erasing a user's data need.

Spec: §8, §9.
"""

from typing import Protocol

from qim_streams.commit.outcome import SendOutcome, SendRequest
from qim_streams.history.rules import HistoryPage, PageQuery
from qim_streams.history.service import HistoryReader
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.reading import ListPage, ListQuery


class Lists(Protocol):
    """Session lists."""

    async def page(self, user: SessionUser, shard: int, query: ListQuery) -> ListPage:
        """A page of the user's conversations."""


class Histories(Protocol):
    """Histories of conversations, as a user may read them."""

    async def page(self, reader: HistoryReader, query: PageQuery) -> HistoryPage:
        """A page."""


class Devices(Protocol):
    """Devices that signed on."""

    async def of_user(self, tenant_id: str, user_id: str) -> dict[str, str]:
        """What is kept of each."""

    async def forget(self, tenant_id: str, user_id: str) -> int:
        """Keep nothing of them any more; how many there were."""


class Push(Protocol):
    """Registered push devices and quiet hours."""

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """The user's devices."""

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings:
        """The user's settings."""

    async def unregister(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """Notify a device no more."""

    async def change_settings(self, settings: PushSettings) -> PushSettings:
        """Keep settings."""


class Writers(Protocol):
    """The writers of conversations."""

    async def send(self, request: SendRequest, timeout_s: float) -> SendOutcome:
        """Send a message or an operation."""

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """Carry out a command."""
