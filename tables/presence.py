"""The web view of presence: the devices that a mailbox worker pushes to, by shard.

Not a table: a cache that the worker fills from the presence log, so it shows what this worker goes by.
``GET /qim/tables/presence/?partition=<shard>``, with

* ``tenant`` and ``ordinal``: the devices of one user;
* ``from`` and ``after``: go on in the order in which devices came (the ``next`` of the answer before);
* ``limit``: rows per answer, 1 to 200.

Spec: §6, §11 rule 3.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from qim_streams.ids import is_text_id
from qim_streams.push.presence import Device, OnlineDevices
from qim_streams.streaming.app import StreamApp
from qim_streams.streaming.web import OK, Page, add_page
from tables.views import BAD_REQUEST, LIMIT_DEFAULT, LIMIT_MAX, NOT_HERE, ROOT, BadQuery, number_of

NAME = "presence"


class Online(Protocol):
    """The presence of the shards that a worker serves."""

    def online(self) -> Mapping[int, OnlineDevices]:
        """By shard."""


def add_presence_view(app: StreamApp, online: Online) -> None:
    """Serve the devices of a worker. Without web nothing listens."""

    async def devices(request: Any) -> Page:
        return answer(online.online(), request.query)

    add_page(app, f"{ROOT}{NAME}/", devices)


def answer(online: Mapping[int, OnlineDevices], fields: Mapping[str, str]) -> Page:
    """What a request is answered."""
    try:
        shard = number_of(fields, "partition", None)
        limit = number_of(fields, "limit", LIMIT_DEFAULT)
        skip, ordinal = number_of(fields, "after", 0), number_of(fields, "ordinal", None)
        tenant = fields.get("tenant")
        if shard is None:
            raise BadQuery("partition: give the shard")
        if not 1 <= limit <= LIMIT_MAX:
            raise BadQuery(f"limit: must be 1 to {LIMIT_MAX}")
        if (tenant is None) != (ordinal is None) or (tenant is not None and not is_text_id(tenant)):
            raise BadQuery("tenant, ordinal: give both, or neither")
    except BadQuery as error:
        return Page({"error": str(error)}, BAD_REQUEST)
    served = sorted(online)
    if shard not in online:
        return Page({"error": f"partition {shard} is not served here", "served": served}, NOT_HERE)
    devices = online[shard]
    if tenant is not None and ordinal is not None:
        return Page(
            {"table": NAME, "served": served, "rows": _rows(devices, devices.of_user(tenant, ordinal))}, OK
        )
    found, more = devices.stretch(skip, limit)
    following = {"from": shard, "after": str(skip + limit)} if more else None
    return Page({"table": NAME, "served": served, "rows": _rows(devices, found), "next": following}, OK)


def _rows(devices: OnlineDevices, found: list[Device]) -> list[dict[str, Any]]:
    live = set(devices.live_among(found))
    return [
        {
            "tenant_id": one.tenant_id,
            "user_id": one.user_id,
            "ordinal": one.ordinal,
            "device_id": one.device_id,
            "connection_shard": one.connection_shard,
            "connection_id": str(one.connection_id),
            "lease_epoch": one.lease_epoch,
            "session_epoch": one.session_epoch,
            "live": one in live,
        }
        for one in found
    ]
