"""A running stack under attack: how it is reached, and what tells whether it took harm.

`Battlefield.unharmed` is asserted after each attack: the same processes, alive, no traceback in their logs.
`memory` is what a role's process takes; `rows` is what the hot tier has of a tenant.
"""

import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import redis

from qim_streams.gateway.tokens import mint_token
from tests.support.stack import StackProcess
from tests.support.wire_client import WireClient

ROLES: Final = ("gateway", "api", "writer", "rooms")
GROWTH_MAX: Final = 48 * 1024 * 1024  # of a process, whatever is thrown at it; attacks claim gigabytes
# What roles write by themselves, later, and take away again.
PASSING = re.compile(rb"\{q[^}]*\}:(reg|dirty)$|:fanout$")
ARCHIVERS = (b"archived_seq", b"oldest", b"hot_from")  # fields of a head


class Battlefield:
    """A stack and its state at the beginning of a test."""

    def __init__(self, stack: StackProcess) -> None:
        self.stack, self.client = stack, stack.client
        self.gateway_port = int(urlsplit(self.client["gateway_url"]).port or 0)
        self.api_port = int(urlsplit(self.client["admin_url"]).port or 0)
        self._pids = {name: stack.role(name).pid for name in ROLES}
        self._marks = {path: path.stat().st_size for path in self._logs()}
        self._memory = {name: self.memory(name) for name in ("gateway", "api")}

    def _logs(self) -> Iterator[Path]:
        return (self.stack.state_dir / "log").glob("*.log")

    def token(self, tenant: str, user: str) -> str:
        """A good access token."""
        secret = str(self.client["jwt_secret"]).encode()
        return mint_token(secret, "qim", tenant, user, 3_600, int(time.time()))[0]

    def wire(
        self, tenant: str, user: str, device: str = "phone", subprotocol: str = "qim.v1+msgpack"
    ) -> WireClient:
        """A bare socket."""
        return WireClient(self.client["gateway_url"], self.token(tenant, user), device, subprotocol)

    def api(self, key: str | None = None) -> httpx.Client:
        """A client of the admin API, with its key unless another one is given."""
        shown = str(self.client["admin_api_key"]) if key is None else key
        return httpx.Client(
            base_url=self.client["admin_url"], headers={"Authorization": f"Bearer {shown}"}, timeout=60
        )

    @property
    def ports(self) -> dict[str, int]:
        """Where the servers listen."""
        return {"gateway": self.gateway_port, "API": self.api_port, "writer": self.internal_ports()[0]}

    def internal_ports(self) -> list[int]:
        """Where writers and RoomWriters listen for gateways: the ports of the addresses in their leases."""
        with self.api() as api:
            leases = api.get("/v1/leases").json()["leases"]
        held = [one for one in leases if str(one["resource"]).startswith(("ob:", "rm:")) and one["address"]]
        assert held, leases
        return sorted({int(str(one["address"]).rpartition(":")[2]) for one in held})

    # -- what tells about harm

    def memory(self, role: str) -> int:
        """Bytes that a role's process has in memory now."""
        pid = self.stack.role(role).pid
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{role} has no memory")

    def growth(self, role: str) -> int:
        """Bytes that it has more than at the beginning."""
        return self.memory(role) - self._memory[role]

    def said_since(self) -> str:
        """What roles have logged since the beginning."""
        parts = []
        for path in self._logs():
            with path.open("rb") as file:
                file.seek(self._marks.get(path, 0))
                parts.append(file.read().decode(errors="replace"))
        return "\n".join(parts)

    def unharmed(self) -> None:
        """AssertionError unless everything runs as before, without an exception that nobody expected."""
        pids = {name: self.stack.role(name).pid for name in ROLES}
        assert pids == self._pids, f"a role was started anew: {self._pids} -> {pids}"
        said = self.said_since()
        assert "Traceback" not in said, said[max(0, said.index("Traceback") - 500) :][:4_000]
        for role in self._memory:
            assert self.growth(role) < GROWTH_MAX, f"{role} grew by {self.growth(role)} bytes"

    # -- the hot tier, as its operator sees it

    def key_names(self) -> list[bytes]:
        """The names of all keys."""
        with redis.Redis.from_url(self.client["redis_url"]) as hot:
            return sorted(hot.scan_iter(count=5_000))

    def lasting_names(self) -> set[bytes]:
        """The names of keys that nothing takes away by itself: neither their time nor a role that is done."""
        with redis.Redis.from_url(self.client["redis_url"]) as hot:
            names = [one for one in hot.scan_iter(count=5_000) if not PASSING.search(one)]
            pipe = hot.pipeline(transaction=False)
            for name in names:
                pipe.pttl(name)
            return {name for name, left_ms in zip(names, pipe.execute(), strict=True) if left_ms == -1}

    def rows(self, tenant: str) -> tuple[dict[bytes, str], list[bytes]]:
        """Each key of the tenant and a digest of what it holds; and the keys of what is still to be done."""
        of_tenant = re.compile(rb"[{:]" + tenant.encode() + rb"[:}]")
        with redis.Redis.from_url(self.client["redis_url"]) as hot:
            keys = [
                one
                for one in sorted(hot.scan_iter(match=f"*{tenant}*", count=5_000))
                if of_tenant.search(one)
            ]
            passing = [key for key in keys if PASSING.search(key)]
            keys = [key for key in keys if key not in passing]
            pipe = hot.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(key) if b"}:c:" in key else pipe.dump(key)
            held: list[Any] = pipe.execute()
        return {key: _digest(one) for key, one in zip(keys, held, strict=True)}, passing


def _digest(held: Any) -> str:
    if isinstance(held, dict):
        held = repr(sorted((name, value) for name, value in held.items() if name not in ARCHIVERS)).encode()
    return hashlib.sha256(held or b"").hexdigest()
