"""Readers who keep a cursor while they are away, and come back with it: as bare frames, nothing is hidden.

Spec: §7.
"""

import aiohttp

from qim_streams.wire.frames import Event
from tests.support.stack import StackProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, WireError, pull_range

BACK_S = 60.0
Entry = tuple[int, bytes, bytes]  # mailbox_seq, event_id, body


class Returning:
    """A device that is away except while it reads. `entries`: all it was ever given, in order."""

    def __init__(self, stack: StackProcess, user: str, device_id: str) -> None:
        self.user, self.device_id = user, device_id
        self.cursor: str | None = None
        self.entries: list[Entry] = []
        self.rebased = 0
        self._address = stack.address()

    async def begin(self) -> None:
        """Sign on for the first time and keep the cursor."""
        await eventually(self._visit, BACK_S, f"{self.user} to sign on")

    async def read(self, count: int) -> int:
        """Come back until there are `count` entries altogether; how often the cursor was rebased for it.

        Whatever else is said against the cursor fails, and so does an entry too many.
        """
        before = self.rebased

        async def there() -> bool:
            return await self._visit() and len(self.entries) >= count

        await eventually(there, BACK_S, f"{self.user} to have {count} entries")
        assert await self._visit()
        assert len(self.entries) == count, f"{self.user} was given {self.entries}"
        return self.rebased - before

    async def _visit(self) -> bool:
        """Sign on, read to the watermark, keep the cursor, go. False: it has to be tried again."""
        try:
            url, token = self._address.require_url(), self._address.token(self.user)
            async with WireClient(url, token, self.device_id) as client:
                auth = await client.auth(self.cursor)
                found = await pull_range(client, auth.after_seq, auth.sync_to_seq)
                assert not found.problems, found.problems
                ready = await client.sync_complete(auth.sync_to_seq)
        except WireError as error:
            return self._refused(error)
        except (aiohttp.ClientError, TimeoutError):
            return False
        self._take(found.events, ready.cursor)
        return True

    def _take(self, events: list[Event], cursor: str | None) -> None:
        self.entries += [(one.mailbox_seq, one.event_id, one.message.body) for one in events]
        self.cursor = cursor or self.cursor

    def _refused(self, error: WireError) -> bool:
        """Go on with the cursor of CURSOR_REBASED; False, since it has to be tried again."""
        name = error.frame.name if error.frame is not None else ""
        if error.frame is not None and name.startswith("CURSOR_"):
            assert name == "CURSOR_REBASED", f"{self.user}: {error}"
            self.rebased += 1
            self.cursor = error.frame.new_cursor
        return False
