"""The provider that stands for one that is not switched on: what still waits for it is let go.

Spec: §6.
"""

from qim_streams.notification.ports import Answer, Notification, Result


class Unserved:
    """`Provider` that refuses everything."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, notification: Notification) -> Answer:
        """See `Provider.send`."""
        return Answer(Result.REFUSED, "this provider is not switched on")

    async def close(self) -> None:
        """See `Provider.close`."""
