"""Direct chats beside messages to one huge group: what they lose, and how long everybody's entry takes.

    python -m tests.perf.huge_beside_direct [--members N] [--rate R] [--seconds S] [--sends N] ... (--help)

On a stack of its own (or the one in `--state-dir`): a group of `--members` is made, of whom only the owner is
ever online. Then ``qim bench --workload direct`` runs twice at `--rate`: once alone, and once while the owner
sends to the group every `--gap` seconds. Told are the latencies of the direct chats in both runs, and for
each message to the group the time from its SEND_ACK until every member has his entry below W. One member of
each lane of each shard is looked at: a lane's entries of a message stand together.

Exit codes: 0 measured, and both runs were clean; 1 something was lost, doubled, reordered, or not MAILBOXED
in `--limit` seconds; 2 wrong usage.

Scenario G5. Spec: §13.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr

from qim_streams.client.discovery import StackAddress
from qim_streams.errors import QimError
from qim_streams.limits import GROUP_MEMBERS_PER_CHANGE_MAX
from qim_streams.loadgen.groups import batches_of
from qim_streams.loadgen.surroundings import stack_settings
from qim_streams.placement import LANES, lane, mailbox_shard, ordinal_of
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from qim_streams.wire.frames import SendAck, SendMessage
from qim_streams.wire.frames_group import GroupAdd, GroupCreate, GroupState
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, running_stack
from tests.support.wire_client import WireClient

LOOK_S = 0.02
CHANGE_S = 120.0  # of one change of the group


class Asked(NamedTuple):
    """What the command line says."""

    members: int
    rate: float
    seconds: float
    sends: int
    gap_s: float
    limit_s: float
    warm_up_s: float


class Huge:
    """The group, and the mailboxes that are looked at."""

    def __init__(self, stack: RunningStack, members: int) -> None:
        self._stack, self._address = stack, stack.address
        self._run = f"{time.time_ns() // 1_000_000 % 10**9:x}"
        self.owner, self.group = f"h{self._run}-owner", f"huge{self._run}"
        self.others = [f"h{self._run}-{number:06d}" for number in range(members - 1)]
        self._keys: list[str] = []
        self._sent = 0

    async def make(self, client: WireClient) -> float:
        """Make the group; seconds."""
        began_s = time.monotonic()
        first, *rest = batches_of(self.others, GROUP_MEMBERS_PER_CHANGE_MAX)
        made = GroupCreate(client.next_rid(), first, self.group)
        await client.request(made, GroupState, within_s=CHANGE_S)
        for batch in rest:
            added = GroupAdd(client.next_rid(), self.group, batch)
            await client.request(added, GroupState, within_s=CHANGE_S)
        return time.monotonic() - began_s

    async def choose(self, redis: RedisClient, tenant: str, shards: int) -> None:
        """One member of each lane of each shard."""
        chosen: dict[tuple[int, int], str] = {}
        wanted = set(self.others)
        for number in range(LANES):
            rows: Any = await redis.hgetall(f"{{o:{tenant}:{number}}}:ids")
            for name, count in rows.items():
                user = name.decode()
                if user in wanted and lane(tenant, user) == number:
                    shard = mailbox_shard(tenant, user, shards)
                    ordinal = ordinal_of(int(count), number)
                    chosen.setdefault((shard, number), f"{{s:{shard}}}:mb:{tenant}:{ordinal}")
        self._keys = list(chosen.values())
        if not self._keys:
            raise MeasurementError("no member of the group has an ordinal")

    async def send(self, client: WireClient, redis: RedisClient, limit_s: float) -> dict[str, float]:
        """One message: its SEND_ACK, then until half of the lanes and all of them have it, milliseconds."""
        self._sent += 1
        began_s = time.monotonic()
        message = SendMessage(client.next_rid(), f"huge-{self._sent}", b"to everybody", self.group)
        await client.request(message, SendAck)
        acked_s = time.monotonic()
        half_s, waiting = 0.0, list(self._keys)
        while waiting:
            if time.monotonic() > acked_s + limit_s:
                raise MeasurementError(f"{len(waiting)} lanes do not have message {self._sent}")
            pipe = redis.pipeline(transaction=False)
            for key in waiting:
                pipe.xlen(key)
            found = await pipe.execute()
            waiting = [key for key, count in zip(waiting, found, strict=True) if count < self._sent]
            if not half_s and 2 * len(waiting) <= len(self._keys):
                half_s = time.monotonic() - acked_s
            await asyncio.sleep(LOOK_S)
        all_s = time.monotonic() - acked_s
        return {"ack": (acked_s - began_s) * 1e3, "half": half_s * 1e3, "all": all_s * 1e3}


async def bench(stack: RunningStack, asked: Asked, folder: Path, name: str) -> dict[str, Any]:
    """The report of a run of direct chats."""
    path = folder / f"{name}.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "qim_streams.cli", "bench", "--workload", "direct", "--quiet",
        "--rate", str(asked.rate), "--duration", str(asked.seconds), "--warm-up", str(asked.warm_up_s),
        "--state-dir", str(stack.state_dir), "--json", str(path),
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        raise MeasurementError(f"the run {name!r} of direct chats was not clean: exit {process.returncode}")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


async def measure(stack: RunningStack, asked: Asked) -> dict[str, Any]:
    """All of it."""
    huge, address = Huge(stack, asked.members), stack.address
    settings = stack_settings(stack.state_dir)
    redis = connect(Settings(redis_url=SecretStr(stack.redis_url)))
    with tempfile.TemporaryDirectory(prefix="qim-huge-") as folder:
        async with owner_of(huge, address) as client:
            await client.go_online()
            made_s = await huge.make(client)
            print(f"a group of {asked.members:,} was made in {made_s:.1f} s", flush=True)
            await huge.choose(redis, address.require_tenant(), int(settings["mailbox_shards"]))
            alone = await huge.send(client, redis, asked.limit_s)
        print(f"one message, nothing else: {alone}", flush=True)
        quiet = await bench(stack, asked, Path(folder), "quiet")
        running = asyncio.create_task(bench(stack, asked, Path(folder), "beside"))
        await asyncio.sleep(asked.warm_up_s + 2 * asked.gap_s)
        sends = []
        async with owner_of(huge, address) as client:
            await client.go_online()
            for _ in range(asked.sends):
                due_s = time.monotonic() + asked.gap_s
                sends.append(await huge.send(client, redis, asked.limit_s))
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        beside = await running
    await redis.aclose()
    return {"made_s": made_s, "alone": alone, "quiet": quiet, "beside": beside, "sends": sends}


def owner_of(huge: Huge, address: StackAddress) -> WireClient:
    """The owner's device."""
    return WireClient(address.require_url(), address.token(huge.owner), "phone")


def show(found: dict[str, Any]) -> None:
    """The figures, for people."""
    print(json.dumps(found, indent=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.huge_beside_direct", description=__doc__)
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=500.0, help="direct messages a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--sends", type=int, default=4, help="messages to the group")
    parser.add_argument("--gap", type=float, default=4.0, help="seconds between them")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds until all must have one")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before each run counts")
    parser.add_argument("--state-dir", type=Path, default=None)
    given = parser.parse_args(argv)
    asked = Asked(
        given.members, given.rate, given.seconds, given.sends, given.gap, given.limit, given.warm_up
    )
    env = {"QIM_GROUP_MEMBERS_MAX": str(asked.members)}
    print(f"load before: {os.getloadavg()}", flush=True)
    try:
        with running_stack(given.state_dir, env=env) as stack:
            show(asyncio.run(measure(stack, asked)))
    except (MeasurementError, QimError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(f"load after: {os.getloadavg()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
