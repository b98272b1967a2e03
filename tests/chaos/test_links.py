"""Links between the processes break: slow, cut, one way only, reset again and again, byte by byte.

Every process runs on; what is between them does not. Clients, the links from gateways to writers, Redis and
the log each go through `tests.support.links`; traffic runs meanwhile, and the oracle judges all of it.

What is not here: damaged bytes. A link that may change them needs TLS (`docs/security.md`).

T-N1, T-N2; P1 to P8. Spec: §14.4.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qim_streams.client.discovery import StackAddress
from qim_streams.embedded import kafka
from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.embedded.status import read_status
from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.links import BACK, CUT, FRONT, WHOLE, Fault, Links
from tests.support.stack import StackProcess
from tests.support.traffic import Plan
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(530)]

NAMES = ("clients", "writers", "redis", "log")
BACK_S = 120.0
ROUNDS = 20
RESETS = 8


class LinkedStack(StackProcess):
    """A stack whose links can be broken. `links` by the names of `NAMES`."""

    def __init__(self, state_dir: Path, links: Links, brokers: str, redis_url: str) -> None:
        env = {"QIM_WRITER_ADVERTISED_HOST": FRONT, "QIM_ROOMS_ADVERTISED_HOST": FRONT}
        super().__init__(state_dir, "--broker", brokers, "--redis", redis_url, env=env)
        self.links = links

    def start(self) -> None:
        """Start; links to writers and gateway are there as soon as their ports are known."""
        waiting = threading.Thread(target=self._link_ports, daemon=True)
        waiting.start()
        super().start()
        waiting.join(10)
        assert set(self.links.names) == set(NAMES)

    def address(self) -> StackAddress:
        """How clients reach the stack: through their link."""
        direct = super().address()
        return replace(direct, gateway_url=direct.gateway_url.replace(BACK, FRONT))

    def _link_ports(self) -> None:
        for name, role in (("writers", "writer"), ("writers", "rooms"), ("clients", "gateway")):
            self.links.open(name, eventually_sync(partial(self._port, role), BACK_S, role))

    def _port(self, role: str) -> int:
        """0: not known yet."""
        status = read_status(self.state_dir)
        found = [one for one in status.roles if one.name == role] if status is not None else []
        return found[0].ports.get("port", 0) if found else 0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedStack]:
    properties = kafka.render_properties

    def linked(log_dir: Path, port: int, controller_port: int) -> str:
        told = properties(log_dir, port, controller_port)
        return told.replace(
            f"advertised.listeners=PLAINTEXT://{BACK}", f"advertised.listeners=PLAINTEXT://{FRONT}"
        )

    made = EmbeddedRedis(tmp_path_factory.mktemp("redis"), progress=lambda _: None)
    with pytest.MonkeyPatch.context() as patch, Links() as links:
        patch.setattr(kafka, "render_properties", linked)
        made.start()
        try:
            with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), quick=True) as broker:
                brokers = links.open("log", broker.port)
                links.open("redis", int(urlsplit(made.url).port or 0))
                url = made.url.replace(BACK, FRONT)
                whole = LinkedStack(tmp_path_factory.mktemp("links") / "stack", links, brokers, url)
                with whole:
                    yield whole
        finally:
            made.stop()


async def broken(stack: LinkedStack, name: str, fault: Fault, seconds: float) -> None:
    """For so long; then whole again."""
    stack.links.set(name, fault)
    await asyncio.sleep(seconds)
    stack.links.set(name, WHOLE)


async def reset_again_and_again(stack: LinkedStack, name: str) -> None:
    for _ in range(RESETS):
        await asyncio.to_thread(stack.links.reset, name)
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("name", NAMES)
async def test_one_link_breaks_in_every_way(
    stack: LinkedStack, under_traffic: UnderTraffic, figures: dict[str, Any], name: str
) -> None:
    """T-N1: nothing is lost, doubled or reordered, whatever a link does; sends go on once it is whole."""
    seed = new_seed()
    chance = random.Random(seed)
    faults: dict[str, Callable[[], Any]] = {
        "slow": lambda: broken(stack, name, Fault(delay_s=lambda: chance.uniform(0.01, 0.5)), 10),
        "bytes": lambda: broken(stack, name, Fault(slices=True), 10),
        "resets": lambda: reset_again_and_again(stack, name),
        "to server": lambda: broken(stack, name, Fault(to_server=False), 10),
        "to client": lambda: broken(stack, name, Fault(to_client=False), 10),
        "cut 5 s": lambda: broken(stack, name, CUT, 5),
        "cut 20 s": lambda: broken(stack, name, CUT, 20),
        "cut 60 s": lambda: broken(stack, name, CUT, 60),
    }
    back: dict[str, float] = {}
    async with under_traffic(stack, Plan(f"n1{name}", seed)) as traffic:
        await traffic.more_acks(60, BACK_S)
        for what, run in faults.items():
            await run()
            healed_s = time.monotonic()
            await traffic.more_acks(60, BACK_S)
            back[what] = round(time.monotonic() - healed_s, 1)
    figures["seconds to 60 acks after"] = back
    print(back)
    assert len(back) == len(faults)


async def test_links_clog_and_clear_in_any_order(
    stack: LinkedStack, under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-N2: some links are cut one by one and come back one by one, in another order."""
    seed = new_seed()
    chance, cuts = random.Random(seed), 0
    async with under_traffic(stack, Plan("n2", seed)) as traffic:
        await traffic.more_acks(60, BACK_S)
        for _ in range(ROUNDS):
            chosen = chance.sample(NAMES, chance.randint(1, len(NAMES)))
            for fault in (CUT, WHOLE):
                for name in chance.sample(chosen, len(chosen)):
                    stack.links.set(name, fault)
                    await asyncio.sleep(chance.uniform(0.0, 1.5))
            cuts += len(chosen)
            await traffic.more_acks(30, BACK_S)
    figures |= {"rounds": ROUNDS, "cuts": cuts}
    assert cuts >= ROUNDS
