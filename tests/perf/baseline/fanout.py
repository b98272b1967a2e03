"""The baseline's fan-out: ``faust -A tests.perf.baseline.fanout worker``."""

from typing import Any

import msgpack

from qim_streams import ids
from qim_streams.records import decode_message, decode_outbox
from tests.perf.baseline import app as base

app = base.make_app("fanout")
outbox = app.topic(base.OUTBOX, key_serializer="raw", value_serializer="raw")
dispatches = app.topic(base.DISPATCH, key_serializer="raw", value_serializer="raw")
pinned = app.Table("pinned", partitions=base.number(base.OUTBOX_PARTITIONS), key_type=bytes, value_type=bytes)


@app.agent(outbox)
async def fanout(stream: Any) -> None:
    """One dispatch per shard of each message."""
    async for event in stream.events():
        record = decode_outbox(event.value)
        message = decode_message(record.message)
        pinned[event.key] = msgpack.packb((message.conversation_seq, message.membership_version))
        for shard, (_, members) in sorted((record.members or {}).items()):
            value = msgpack.packb(
                (
                    message.tenant_id,
                    ids.dispatch_id(message.message_id, shard),
                    message.message_id,
                    message.conversation_id,
                    message.conversation_seq,
                    message.sender_id,
                    message.sender_ordinal,
                    message.client_message_id,
                    message.committed_at,
                    message.membership_version,
                    members,
                )
            )
            await dispatches.send(key=event.key, value=value, partition=shard)
