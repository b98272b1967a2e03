"""Presence through real sockets, Redis and gateways: who is online, last seen, invisible (Spec: §6)."""

from typing import Any

import aiohttp
import pytest

from qim_streams.errors import AdmissionRefused
from tests.integration.scenarios.conftest import Cast
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def test_members_see_each_other_come_and_go(cast: Cast) -> None:
    ann, ben, eve = cast.people("ann", "ben", "eve")
    watcher = await ann.online()
    seq = (await watcher.send(b"hello", to_user_id=ben.user_id)).conversation_id
    (before,) = await watcher.presence.watch(seq, [ben.user_id])
    assert (before.online, before.last_seen_ms) == (False, None)
    watched = await ben.online()
    await eventually(lambda: watcher.presence.states[ben.user_id].online, 30)
    await watched.presence.set_visible(False)
    await eventually(lambda: not watcher.presence.states[ben.user_id].online, 30)
    await watched.presence.set_visible(True)
    await eventually(lambda: watcher.presence.states[ben.user_id].online, 30)
    address = cast.stack.address()
    base = f"{address.admin_url}/v1/tenants/{address.require_tenant()}/users"
    async with aiohttp.ClientSession(headers={"X-Api-Key": address.admin_api_key}) as http:

        async def looked_up(user_id: str) -> tuple[int, Any]:
            async with http.get(f"{base}/{user_id}/presence") as answer:
                return answer.status, await answer.json()

        status, shown = await looked_up(ben.user_id)
        assert (status, shown["online"], shown["last_seen_ms"]) == (200, True, None)
        assert [one["device_id"] for one in shown["devices"]] == ["phone"]
        await watched.close()
        await eventually(lambda: watcher.presence.states[ben.user_id].last_seen_ms is not None, 30)
        _, shown = await looked_up(ben.user_id)
        assert (shown["online"], shown["last_seen_ms"] is None) == (False, False)
        assert (await looked_up(f"{ben.user_id}-nobody"))[0] == 404
    stranger = await eve.online()
    with pytest.raises(AdmissionRefused, match="only members"):
        await stranger.presence.watch(seq, [ben.user_id])
