"""Signals over Redis publish/subscribe: a channel per user, subscribed while he has a device here.

Invariants: one connection listens, whatever the number of channels; what waits to be published is bounded,
the oldest is dropped; a lost connection is made again and all channels are subscribed anew.

Spec: §9.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis import exceptions as redis_errors

from qim_streams.gateway.signals import OWN, Listeners, Receive, channel_of, message_of
from qim_streams.redis_tier import RedisClient, exchange
from qim_streams.sessions.ports import SessionUser

log = logging.getLogger(__name__)

HOME: Final = "{q}:sig"  # a subscription must never be empty
WAITING_MAX: Final = 10_000
BATCH_MAX: Final = 256
POLL_S: Final = 1.0
AGAIN_S: Final = 0.5
_LOST = (redis_errors.RedisError, OSError, TimeoutError)


class RedisSignals:
    """`SignalBus` on Redis. Run `run` as long as the gateway lives."""

    def __init__(self, client: RedisClient) -> None:
        self.on_again: Callable[[], object] = lambda: None  # it listens, and may have missed something
        self._client, self._listeners = client, Listeners()
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=WAITING_MAX)
        self._publisher: asyncio.Task[None] | None = None
        self._pubsub: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- SignalBus

    def tell(self, user: SessionUser, but_device: str, data: bytes, what: str = OWN) -> None:
        """See the port."""
        self._waiting.append((channel_of(user, what), message_of(but_device, data)))
        if self._publisher is None:
            self._publisher = asyncio.get_running_loop().create_task(self._publish())

    def tell_all(self, user: SessionUser, data: bytes) -> None:
        """See the port."""
        self.tell(user, "", data)

    def listen(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """See the port."""
        channel = channel_of(user, what)
        if self._listeners.add(channel, receive) and self._pubsub is not None:
            self._spawn(self._pubsub.subscribe(channel))

    def unlisten(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """See the port."""
        channel = channel_of(user, what)
        if self._listeners.remove(channel, receive) and self._pubsub is not None:
            self._spawn(self._pubsub.unsubscribe(channel))

    # -- the connection

    async def run(self) -> None:
        """Listen, for ever."""
        while True:
            try:
                await self._serve()
            except _LOST as error:
                log.warning("signals are lost for a moment: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _serve(self) -> None:
        pubsub: Any = self._client.pubsub(ignore_subscribe_messages=True)
        try:
            await pubsub.subscribe(HOME, *self._listeners.channels)
            self._pubsub = pubsub
            for channel in self._listeners.channels:  # who came while the first were subscribed
                if channel.encode() not in pubsub.channels:
                    await pubsub.subscribe(channel)
            self.on_again()
            while True:
                message = await pubsub.get_message(timeout=POLL_S)
                if message is not None:
                    self._listeners.deliver(message["channel"].decode(), message["data"])
        finally:
            self._pubsub = None
            await pubsub.aclose()

    async def _publish(self) -> None:
        try:
            while self._waiting:
                count = min(BATCH_MAX, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
                await exchange(self._client, [("PUBLISH", channel, data) for channel, data in batch])
        except _LOST as error:
            log.warning("%d signals were lost: %s", count, error)
        finally:
            self._publisher = None

    def _spawn(self, change: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._quietly(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, change: Awaitable[None]) -> None:
        try:
            await change
        except _LOST as error:
            # The connection is made anew with all channels.
            log.info("a channel could not be changed: %s", error)
