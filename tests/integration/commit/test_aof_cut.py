"""T-R2, D4: the append-only file is cut anywhere in its last 4,096 bytes; the next boot has everything again.

Redis, its file and its loss are real; the logs are in memory and keep what was acknowledged. Everything that
the writer was asked was answered before the cut, so what comes back must be exactly what was there.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.redis_tier import connect
from qim_streams.settings import Settings
from qim_streams.testing.memory_outbox import MemoryMembershipLog
from tests.support.append_only import written_file
from tests.support.hot_tier import TENANT
from tests.support.lost_tier import USERS, World, everything

pytestmark = pytest.mark.integration

CUT_MAX = 4_096
CUTS, CUTS_LONG = 8, 200


def cuts(count: int, rng: random.Random) -> Iterator[int]:
    """One position in each of `count` equal parts of 0 to 4,096, both ends included."""
    yield 0
    part = CUT_MAX / (count - 2)
    yield from (rng.randint(int(n * part) + 1, int((n + 1) * part)) for n in range(count - 2))
    yield CUT_MAX


def copied(world: World, server: EmbeddedRedis) -> World:
    """The same past, on another server; what its boots do stays with it."""
    other = World(connect(Settings(redis_url=SecretStr(server.url))))
    other.log, other.acked = list(world.log), dict(world.acked)
    other.changes = MemoryMembershipLog()
    other.changes.rows = list(world.changes.rows)
    other.boots, other.sent = world.boots, world.sent
    return other


async def past(directory: Path, seed: int) -> tuple[World, dict[str, object]]:
    """What a writer lived through on a Redis in `directory`, which is dead now."""
    server = EmbeddedRedis(directory, progress=lambda _: None)
    server.start()
    try:
        world = World(connect(Settings(redis_url=SecretStr(server.url))))
        rig = await world.boot()
        await world.live(rig, random.Random(seed), 120)
        before = await everything(world, rig)
        rig.kill()
        await world.client.aclose()
    finally:
        server.kill()
        server.stop()
    return world, before


def shorten(directory: Path, cut: int) -> None:
    """Take bytes off the end of the append-only file."""
    file = written_file(directory)
    with file.open("r+b") as stream:
        stream.truncate(max(0, file.stat().st_size - cut))


async def check_cut(template: Path, directory: Path, world: World, before: object, cut: int) -> None:
    """Start on the file without its last `cut` bytes and compare."""
    shutil.copytree(template, directory)
    shorten(directory, cut)
    server = EmbeddedRedis(directory, progress=lambda _: None)
    server.start()
    try:
        now = copied(world, server)
        rig = await now.boot()
        assert await everything(now, rig) == before, f"after a cut of {cut} bytes"
        for request, outcome in list(now.acked.values())[-20:]:
            assert await rig.writer.send(request, 10) == outcome, f"another answer after a cut of {cut} bytes"
        new = await rig.directory.assign(TENANT, [f"new{n}" for n in range(64)])
        known = await rig.directory.find(TENANT, USERS)
        assert not set(new) & set(known), f"an ordinal was given twice after a cut of {cut} bytes"
        await now.live(rig, random.Random(cut), 20)
        used: dict[tuple[str, int], bytes] = {}
        for one in now.messages():
            place = (one.conversation_id, one.conversation_seq)
            assert used.setdefault(place, one.message_id) == one.message_id, f"used twice after {cut} bytes"
        rig.kill()
        await now.client.aclose()
    finally:
        server.stop()
        shutil.rmtree(directory)


async def check_cuts(tmp_path: Path, count: int, seed: int) -> None:
    print(f"seed {seed}")
    template = tmp_path / "template"
    world, before = await past(template, seed)
    for cut in cuts(count, random.Random(seed)):
        await check_cut(template, tmp_path / "cut", world, before, cut)


async def test_any_cut_of_the_last_4096_bytes_is_made_good(tmp_path: Path) -> None:
    await check_cuts(tmp_path, CUTS, 20_261_130)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_cuts_of_the_last_4096_bytes_are_made_good(tmp_path: Path) -> None:
    await check_cuts(tmp_path, CUTS_LONG, 20_261_131)
