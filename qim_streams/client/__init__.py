"""The Python client SDK: a correct client.

Repeats sends under one client_message_id until they are answered, also over a restart; shows every event
once and in order per conversation; keeps its cursor only from pulls; comes back by itself; and closes
from history what it missed::

    store = SqliteStore(Path("phone-1.db"))
    async with QimClient(url, token, "phone-1", store=store) as client:
        receipt = await client.send(b"hello", to_user_id="bob")
        async for delivery in client.events():
            ...

Reading order: `options`, `deliveries`; the rules without sockets: `inbox` (dedup and order), `pulls` and
`coverage` (what was pulled), `sends`, `session` (all of them on one connection); `store`, `sqlite_store`
and `journal` (kept first, handed out then); `requests`, `history`, `conversations` and `rebuild`; then
`link`, `keeper`, `client`. The guide for applications is ``docs/sdk.md``.

Spec: §3, §6, §7, §8.
"""

from qim_streams.client.client import QimClient
from qim_streams.client.conversations import Conversations, ConversationSet
from qim_streams.client.deliveries import (
    Delivery,
    Disconnected,
    Gap,
    HistoryClosed,
    MessageEdited,
    MessageRecalled,
    MessageReceived,
    MessageSent,
    Rebased,
    RebuildFinished,
    RebuildRequired,
    RebuildStarted,
    SendFailed,
    SendReceipt,
    Stopped,
    SyncFinished,
    SyncStarted,
)
from qim_streams.client.options import ClientOptions
from qim_streams.client.sqlite_store import SqliteStore
from qim_streams.client.store import LocalStore, MemoryStore, NoStore
from qim_streams.mentions import Mentions

__all__ = [
    "ClientOptions",
    "ConversationSet",
    "Conversations",
    "Delivery",
    "Disconnected",
    "Gap",
    "HistoryClosed",
    "LocalStore",
    "MemoryStore",
    "Mentions",
    "MessageEdited",
    "MessageRecalled",
    "MessageReceived",
    "MessageSent",
    "NoStore",
    "QimClient",
    "Rebased",
    "RebuildFinished",
    "RebuildRequired",
    "RebuildStarted",
    "SendFailed",
    "SendReceipt",
    "SqliteStore",
    "Stopped",
    "SyncFinished",
    "SyncStarted",
]
