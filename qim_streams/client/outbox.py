"""Messages that the application gives: checked, kept, sent, and told how they ended.

Invariants: a message is kept before the session may send it, and leaves the outbox in the transaction
that keeps its end; each is told once, as a mark in the stream and to whoever waits for it. What would
break every connection (too large, an id that is none) is refused here and never kept.

Spec: §3 (5). Scenarios C1 C4.
"""

import asyncio
from collections.abc import Callable, Iterable

from qim_streams import limits
from qim_streams.client.deliveries import MessageSent, SendFailed, SendReceipt
from qim_streams.client.journal import Journal
from qim_streams.client.sends import Outgoing
from qim_streams.client.session import Session
from qim_streams.client.store import Unsent
from qim_streams.errors import AdmissionRefused, ConfigError, QimError, RecordError
from qim_streams.ids import is_text_id
from qim_streams.mentions import decode_mentions
from qim_streams.records import KIND_MESSAGE
from qim_streams.wire.frames import Error, SendAck
from qim_streams.wire.kinds import INT_MAX

Settled = Callable[["SendReceipt | QimError"], None]


class Outbox:
    """`body_bytes_max`: what fits into a frame. `restored`: messages of earlier processes."""

    def __init__(
        self, session: Session, journal: Journal, body_bytes_max: int, restored: Iterable[Unsent]
    ) -> None:
        self._session, self._journal, self._body_bytes_max = session, journal, body_bytes_max
        self._waiting: dict[str, Settled] = {}
        self._posting: set[asyncio.Future[None]] = set()
        for unsent in restored:
            session.sends.restore(Outgoing(*unsent, settled=self._settle))

    def add(
        self, unsent: Unsent, settled: Settled | None = None, kept: Callable[[], None] | None = None
    ) -> None:
        """Take a message. ConfigError, AdmissionRefused: it was not taken."""
        self._check(unsent)
        message = Outgoing(*unsent, settled=self._settle)
        self._session.sends.admit(message)
        if settled is not None:
            self._waiting[unsent.client_message_id] = settled
        self._journal.send(message, kept)
        self._journal.write()

    async def add_and_keep(self, unsent: Unsent) -> None:
        """Take a message and wait until it is kept."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posting.add(kept)
        try:
            self.add(unsent, None, lambda: None if kept.done() else kept.set_result(None))
            await kept
        finally:
            self._posting.discard(kept)

    async def add_and_settle(self, unsent: Unsent, timeout_s: float | None) -> SendReceipt:
        """Take a message and wait for its receipt. Errors as in `QimClient.send`."""
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()

        def settled(result: SendReceipt | QimError) -> None:
            if future.done():
                return
            if isinstance(result, QimError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.add(unsent, settled)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            if not future.done() or future.cancelled():
                self.give_up(unsent.client_message_id)

    def give_up(self, client_message_id: str) -> None:
        """Stop repeating a message; nothing is told."""
        if self._session.sends.cancel(client_message_id):
            self._waiting.pop(client_message_id, None)
            self._journal.settle(client_message_id, None)
            self._journal.write()

    def stop(self, why: QimError) -> None:
        """Nothing is sent any more: those who wait hear why. What was kept stays kept."""
        self._session.sends.drain()
        waiting, self._waiting = self._waiting, {}
        for settled in waiting.values():
            settled(why)
        for kept in self._posting:
            if not kept.done():
                kept.set_exception(why)

    def _check(self, unsent: Unsent) -> None:
        if (unsent.conversation_id is None) == (unsent.to_user_id is None):
            raise ConfigError("send: give either conversation_id or to_user_id")
        if unsent.kind != KIND_MESSAGE and not 1 <= (unsent.target_seq or 0) <= INT_MAX:
            raise ConfigError(f"conversation_seq: {unsent.target_seq} names no message; the first is 1")
        for name in (unsent.conversation_id, unsent.to_user_id, unsent.client_message_id):
            if name is not None and not is_text_id(name):
                raise ConfigError(f"send: {name!r} is not an id; use letters, digits and . _ @ ~ -")
        try:
            decode_mentions(unsent.mentions)
        except RecordError as error:
            raise ConfigError(f"mentions: at most {limits.MENTIONS_MAX} users, by their ids") from error
        if len(unsent.body) > self._body_bytes_max:
            raise AdmissionRefused("BODY_TOO_LARGE", f"{len(unsent.body)} bytes do not fit into a frame")

    def _settle(self, message: Outgoing, answer: SendAck | Error) -> None:
        """The server settled a message; the session's owner is called next, and writes."""
        name = message.client_message_id
        result: SendReceipt | QimError
        if isinstance(answer, SendAck):
            result = SendReceipt(*answer[1:])
            self._session.shown.append(MessageSent(result))
        else:
            result = AdmissionRefused(answer.name, answer.detail)
            self._session.shown.append(SendFailed(name, answer.name, answer.detail))
        settled = self._waiting.pop(name, None)
        self._journal.settle(name, None if settled is None else lambda: settled(result))
