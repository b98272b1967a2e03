"""One tenant at ten times its fan-out quota beside another one, on real processes.

T-X6, T-Q3; §13: the storm of one tenant does not reach another. Spec: §3.2 L3.
"""

import asyncio
import secrets
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from qim_streams.gateway.tokens import mint_token
from qim_streams.wire.frames import Auth, AuthOk, Error, SendAck, SendMessage, SyncComplete
from tests.support.gateway_world import WireClient
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

QUOTA, TIMES = 200, 10  # recipients per second; a message to a direct chat has two
SOCKETS, PHASE_S, CALM_PER_S = 4, 12.0, 25
UNANSWERED_MAX = 200  # below what a socket may have


class Talker:
    """A user who sends to a direct chat at a pace, whatever the answers are, and counts them."""

    def __init__(self, client: WireClient, user: str) -> None:
        self._client, self._user = client, user
        self._sent: dict[int, float] = {}
        self.waits_s: list[float] = []
        self.answers: Counter[str] = Counter()
        self.retry_ms: list[int] = []

    async def talk(self, per_s: float, seconds: float) -> None:
        """Send for so long, then wait for the last answers."""
        reading = asyncio.create_task(self._read())
        began = time.monotonic()
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
            if len(self._sent) >= UNANSWERED_MAX:
                continue
            rid = self._client.next_rid()
            self._sent[rid] = time.monotonic()
            frame = SendMessage(rid, secrets.token_hex(8), b"hello", to_user_id=f"{self._user}-peer")
            await self._client.send(frame)
        await eventually(lambda: not self._sent, 60, "the last answers")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            frame = await self._client.receive(60)
            if isinstance(frame, SendAck | Error) and frame.rid in self._sent:
                self.waits_s.append(time.monotonic() - self._sent.pop(frame.rid))
                self.answers["ok" if isinstance(frame, SendAck) else frame.name] += 1
                if isinstance(frame, Error):
                    self.retry_ms.append(frame.retry_after_ms or 0)


@asynccontextmanager
async def talker(stack: StackProcess, tenant: str, user: str) -> AsyncIterator[Talker]:
    """A user of a tenant who is online."""
    known = stack.client
    token, _ = mint_token(known["jwt_secret"].encode(), "qim", tenant, user, 600, int(time.time()))
    async with await WireClient.connect(known["gateway_url"]) as client:
        auth = await client.call(Auth(client.next_rid(), token, "phone"))
        assert type(auth) is AuthOk, auth
        await client.call(SyncComplete(client.next_rid(), auth.sync_to_seq))
        yield Talker(client, user)


def quantile(waits_s: list[float], share: float) -> float:
    """Milliseconds."""
    return round(sorted(waits_s)[int(share * (len(waits_s) - 1))] * 1_000, 1)


async def test_a_storm_of_one_tenant_is_its_own(whole_stack: StackProcess, figures: dict[str, Any]) -> None:
    """A gets its quota and refusals that say when to come again; B is refused nothing and hardly waits."""
    run = secrets.token_hex(4)
    noisy, calm = f"noisy{run}", f"calm{run}"
    known = whole_stack.client
    key = {"Authorization": f"Bearer {known['admin_api_key']}"}
    async with httpx.AsyncClient(base_url=known["admin_url"], headers=key, timeout=20) as api:
        rules = await api.put(f"/v1/tenants/{noisy}/rules", json={"fanout_per_s": QUOTA})
        assert rules.status_code == 200, rules.text
    async with AsyncExitStack() as people:
        storm = [
            await people.enter_async_context(talker(whole_stack, noisy, f"a{number}-{run}"))
            for number in range(SOCKETS)
        ]
        before, during = [
            await people.enter_async_context(talker(whole_stack, calm, f"{name}-{run}")) for name in "bc"
        ]
        for one in (*storm, before, during):  # chats are made, the tenant's rule is known
            await one.talk(5, 1.5)
        for one in (*storm, before, during):
            one.waits_s.clear()
            one.answers.clear()
        await before.talk(CALM_PER_S, PHASE_S)
        per_socket = QUOTA / 2 * TIMES / SOCKETS
        await asyncio.gather(
            during.talk(CALM_PER_S, PHASE_S), *(one.talk(per_socket, PHASE_S) for one in storm)
        )
    answers = sum((one.answers for one in storm), Counter[str]())
    figures |= {
        "quota, recipients/s": QUOTA,
        "offered": sum(answers.values()),
        "admitted": answers["ok"],
        "other tenant P50 alone, ms": quantile(before.waits_s, 0.5),
        "other tenant P99 alone, ms": quantile(before.waits_s, 0.99),
        "other tenant P50 beside the storm, ms": quantile(during.waits_s, 0.5),
        "other tenant P99 beside the storm, ms": quantile(during.waits_s, 0.99),
    }
    print(figures)
    assert set(answers) == {"ok", "QUOTA_EXCEEDED"}, answers
    assert min(delay for one in storm for delay in one.retry_ms) > 0
    seconds = PHASE_S + 30  # the longest that it may have lasted
    assert 2 * answers["ok"] <= QUOTA * (seconds + 4), answers
    assert answers["QUOTA_EXCEEDED"] > answers["ok"], answers
    assert set(before.answers) == set(during.answers) == {"ok"}
    assert statistics.median(during.waits_s) <= 3 * statistics.median(before.waits_s) + 0.1
