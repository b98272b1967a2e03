"""The baseline's mailbox stage: ``faust -A tests.perf.baseline.mailbox worker``."""

import os
from typing import Any

import msgpack
from redis import asyncio as redis

from qim_streams.records import RECIPIENT_FLAGS, SENDER_FLAGS, UserMailboxEntry, unpack_ordinals
from tests.perf.baseline import app as base

app = base.make_app("mailbox")
dispatches = app.topic(base.DISPATCH, key_serializer="raw", value_serializer="raw")
pushes = app.topic(base.PUSH, key_serializer="raw", value_serializer="raw")
watermarks = app.Table("watermarks", partitions=base.number(base.SHARDS), key_type=bytes, value_type=bytes)
store = redis.Redis.from_url(os.environ[base.REDIS_URL])
push_partitions = base.number(base.PUSH_PARTITIONS)


@app.agent(dispatches)
async def mailbox(stream: Any) -> None:
    """An entry per recipient, the watermark, and a push record for everybody but the sender."""
    async for event in stream.events():
        (
            tenant,
            _,
            message_id,
            chat,
            seq,
            sender,
            sender_ordinal,
            client_message_id,
            at,
            version,
            members,
        ) = msgpack.unpackb(event.value)
        shard, offset = event.message.partition, event.message.offset
        recipients = unpack_ordinals(members)
        for ordinal in recipients:
            mine = ordinal == sender_ordinal
            entry = UserMailboxEntry(
                0, message_id, chat, seq, sender,
                SENDER_FLAGS if mine else RECIPIENT_FLAGS, at, client_message_id if mine else None,
            )  # fmt: skip
            await store.xadd(
                f"{base.ENTRY_KEYS}{shard}:{tenant}:{ordinal}", {"e": entry.encode()}, id=f"{offset + 1}-1"
            )
        watermarks[b"%d" % shard] = b"%d" % offset
        others = [ordinal for ordinal in recipients if ordinal != sender_ordinal]
        if others:
            value = msgpack.packb((tenant, shard, offset, message_id, chat, seq, sender, at, version, others))
            await pushes.send(key=event.key, value=value, partition=others[0] % push_partitions)
