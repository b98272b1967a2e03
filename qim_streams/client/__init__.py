"""The Python client SDK: a correct client.

Repeats sends under one client_message_id until they are answered, shows every event once and in order
per conversation, keeps its cursor only from pulls, and comes back by itself::

    async with QimClient(url, token, "phone-1") as client:
        receipt = await client.send(b"hello", to_user_id="bob")
        async for delivery in client.events():
            ...

Reading order: `options`, `deliveries`; the rules without sockets: `inbox` (dedup and order), `pulls` and
`coverage` (what was pulled), `sends`, `session` (all of them on one connection); then `link`, `keeper`,
`client`; `store` and `sqlite_store` for what a device keeps.

Spec: §3, §6, §7, §8 (step 0).
"""

from qim_streams.client.client import QimClient, SendReceipt
from qim_streams.client.deliveries import Delivery, RebuildRequired, SyncFinished, SyncStarted
from qim_streams.client.options import ClientOptions
from qim_streams.client.sqlite_store import SqliteStore
from qim_streams.client.store import LocalStore, MemoryStore

__all__ = [
    "ClientOptions",
    "Delivery",
    "LocalStore",
    "MemoryStore",
    "QimClient",
    "RebuildRequired",
    "SendReceipt",
    "SqliteStore",
    "SyncFinished",
    "SyncStarted",
]
