"""A device of the workload: the SDK's client with a store that survives it, and a record of all it did.

Spec: §3.5, §7.
"""

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp

from qim_streams.client import Delivery, MemoryStore, QimClient, RebuildRequired, SendReceipt
from qim_streams.errors import AdmissionRefused, QimError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.traffic import Traffic

REPEAT_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message goes: a conversation or a user."""

    conversation_id: str | None
    to_user_id: str | None


@dataclass(slots=True)
class Said:
    """A message and what its sender knows of it: open, ok, fail or info."""

    key: str
    target: Target
    body: bytes
    outcome: str = "open"


def body_of(key: str, size_max: int) -> bytes:
    """The payload of a key: the key and a padding whose length depends on it. The same for every call."""
    return f"{key}|".encode() + b"." * Random(key).randrange(size_max)


def receipt_value(receipt: SendReceipt) -> dict[str, Any]:
    """A receipt as the history keeps it."""
    return {
        "conversation": receipt.conversation_id,
        "seq": receipt.conversation_seq,
        "message_id": receipt.message_id.hex(),
        "at": receipt.committed_at,
    }


class Device:
    """One device over all its connections. `deliveries` is what the application was shown, in order."""

    def __init__(self, traffic: "Traffic", user: str, kind: str, http: aiohttp.ClientSession) -> None:
        self.user, self.kind = user, kind
        self.name = f"{user}.{kind}"
        self.deliveries: list[Delivery] = []
        self.said: dict[str, Said] = {}
        self.wire_duplicates = self.visible_duplicates = self.reordered = self.gaps = 0
        self._traffic, self._http = traffic, http
        # What comes and goes is cut in the middle of its syncs, so they take many pulls.
        small = kind == "coming"
        self._options = replace(traffic.plan.options, pull_entries=7) if small else traffic.plan.options
        self._store = MemoryStore()
        self._client: QimClient | None = None
        self._turning = asyncio.Lock()
        self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a client now."""
        return self._client is not None

    @property
    def client(self) -> QimClient:
        """The client of an open device."""
        assert self._client is not None, f"{self.name} is closed"
        return self._client

    @property
    def waiting(self) -> int:
        """Sends without an answer."""
        return len(self.client.session.sends)

    async def open(self) -> None:
        """Start (again) with what the store kept; does not wait."""
        async with self._turning:
            if self._client is None:
                traffic = self._traffic
                self._client = QimClient(
                    traffic.address.require_url(),
                    traffic.address.token(self.user),
                    f"{self.kind}-{self.user}",
                    options=self._options,
                    store=self._store,
                    on_deliveries=self.deliveries.extend,
                    http=self._http,
                )
                self._client.start()

    async def close(self) -> None:
        """Go offline; sends without an answer stay in the store and go out again after `open`."""
        await asyncio.shield(self._close())  # half closed it would come back beside its successor

    async def _close(self) -> None:
        async with self._turning:
            client, self._client = self._client, None
            if client is not None:
                await client.close()
                counters = client.session.inbox.counters
                self.wire_duplicates += counters.wire_duplicates
                self.visible_duplicates += counters.visible_duplicates
                self.reordered += counters.reordered
                self.gaps += counters.gaps

    def say(self, target: Target, *, give_up: bool = False) -> None:
        """Send a new message without waiting; `give_up`: stop caring for it a moment later."""
        self._count += 1
        key = f"{self._traffic.plan.run}.{self.name.replace('-', '_')}.{self._count}"
        said = Said(key, target, body_of(key, self._traffic.plan.body_bytes_max))
        self.said[key] = said
        call = self._invoke("send", said)

        def settled(result: SendReceipt | QimError) -> None:
            self._complete(call, "send", said, result)

        client = self.client
        client.submit(
            said.body,
            settled,
            conversation_id=target.conversation_id,
            to_user_id=target.to_user_id,
            client_message_id=key,
        )
        if give_up:
            delay_s = self._traffic.random.uniform(0.0, 0.05)
            asyncio.get_running_loop().call_later(delay_s, self._give_up, client, call, said)

    def _give_up(self, client: QimClient, call: int, said: Said) -> None:
        if said.outcome == "open":
            client.give_up(said.key)
            self._close_call(call, "send", said, "info", None, "given up")

    async def repeat(self, said: Said) -> None:
        """Send the same message under the same id once more and record the answer."""
        call = self._invoke("repeat", said)
        try:
            result: SendReceipt | QimError = await self.client.send(
                said.body,
                conversation_id=said.target.conversation_id,
                to_user_id=said.target.to_user_id,
                client_message_id=said.key,
                timeout_s=REPEAT_S,
            )
        except AdmissionRefused as refused:
            result = refused
        self._complete(call, "repeat", said, result)

    @property
    def rebuilds(self) -> int:
        """How often the server refused the cursor."""
        return sum(isinstance(one, RebuildRequired) for one in self.deliveries)

    async def caught_up(self, entries: int, within_s: float) -> None:
        """Until the application was shown so many deliveries."""
        await eventually(lambda: len(self.deliveries) >= entries, within_s, f"{entries} at {self.name}")

    def _invoke(self, op: str, said: Said) -> int:
        value = {
            "key": said.key,
            "user": self.user,
            "device": self.name,
            "conversation": said.target.conversation_id,
            "to": said.target.to_user_id,
        }
        return self._traffic.history.invoke(self.name, op, value)

    def _complete(self, call: int, op: str, said: Said, result: SendReceipt | QimError) -> None:
        if isinstance(result, SendReceipt):
            self._close_call(call, op, said, "ok", receipt_value(result), None)
        elif isinstance(result, AdmissionRefused):
            self._close_call(call, op, said, "fail", None, result.code)
        else:
            self._close_call(call, op, said, "info", None, str(result))

    def _close_call(
        self, call: int, op: str, said: Said, outcome: str, value: object, error: str | None
    ) -> None:
        said.outcome = outcome
        self._traffic.counts[outcome] += 1
        if outcome == "fail":
            self._traffic.counts[f"fail {error}"] += 1
        self._traffic.history.complete(call, self.name, op, outcome, value, error)
