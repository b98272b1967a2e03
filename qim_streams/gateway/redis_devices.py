"""Device sessions in Redis: ``{u:<tenant>:<user>}:dev``, a hash: device -> epoch, last sight, platform, mark.

Spec: §7.
"""

from collections.abc import Sequence

from qim_streams import limits
from qim_streams.command_pipe import CommandPipe
from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.ports import DEFAULT_LOGIN, DeviceKey, Login, Newest, Opened
from qim_streams.redis_tier import RedisClient, Script, translate, translated
from qim_streams.script_pipe import ScriptPipe

TOUCH_MAX = 500  # script calls in one pipeline
NOTHING = "-"  # no id begins with it


class RedisDeviceSessions:
    """`DeviceSessions` on Redis."""

    def __init__(self, client: RedisClient, devices_max: int = limits.DEVICES_MAX) -> None:
        self._client, self._pipe, self._max = client, ScriptPipe(client), devices_max
        self._script = Script.load("qim_streams.gateway", "device_session.lua")

    async def open(self, device: DeviceKey, now_ms: int, login: Login = DEFAULT_LOGIN) -> Opened:
        """See `DeviceSessions.open`."""
        resumes = -1 if login.resumes is None else login.resumes
        args = (
            *("open", device.device_id, now_ms, self._max),
            *(login.policy, login.platform or NOTHING, resumes),
        )
        async with translated("device sessions"):
            epoch, *words = await self._pipe.call(self._script, [_key(device)], args)
        if not epoch:
            return Opened(0, ended_by=words[0].decode())
        names = [name.decode() for name in words[::2]]
        return Opened(int(epoch), dict(zip(names, map(int, words[1::2]), strict=True)))

    async def touch(self, devices: Sequence[DeviceKey], now_ms: int) -> list[Newest]:
        """See `DeviceSessions.touch`."""
        found: list[Newest] = []
        for start in range(0, len(devices), TOUCH_MAX):
            calls = [
                ([_key(one)], ("touch", one.device_id, now_ms)) for one in devices[start : start + TOUCH_MAX]
            ]
            async with translated("device sessions"):
                answers = await self._script.call_many(self._client, calls)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise translate(answer, "device sessions") from answer
                by = answer[1].decode()
                found.append(Newest(int(answer[0]), "" if by == NOTHING else by))
        return found


class RedisShardEpochs:
    """`sync.ports.ShardEpochs` on Redis: ``{s:<shard>}:epoch``, written by the lease store."""

    def __init__(self, client: RedisClient) -> None:
        self._reads = CommandPipe(client)

    async def current(self, shard: int) -> int:
        """See `ShardEpochs.current`."""
        async with translated(f"s:{shard}"):
            (value,) = await self._reads.run(("GET", f"{{s:{shard}}}:epoch"))
        if value is None:
            return 0
        if not value.isdigit():
            raise StoreUnavailable(f"s:{shard}: epoch is not a number")
        return int(value)


def devices_key(tenant_id: str, user_id: str) -> str:
    """Where a user's devices are."""
    return f"{{u:{tenant_id}:{user_id}}}:dev"


def _key(device: DeviceKey) -> str:
    return devices_key(device.tenant_id, device.user_id)
