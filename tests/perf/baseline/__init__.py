"""The same two stages in stock Faust style, to be compared with: what one writes after the tutorial.

Topology and durability are those of the product: Outbox topic -> fan-out -> dispatch topic -> mailbox ->
push topic, the same partition counts and keys, acks=all, RocksDB tables with changelogs, entries in Redis
streams under the same ids. What differs is the style: ``async for`` over events, ``await topic.send`` per
record, a table write per record, one Redis call per record; Faust's own consumer, producer, tables and
acknowledgements, with their defaults.

Done per message, as in the product: decode the real OutboxRecord, pin its membership version (a table
write), one dispatch per shard, one entry per recipient, the shard's watermark (a table write), one push
record per dispatch with somebody to tell.

Left out, each of which the product pays for: dropping repeated dispatches; epochs and leases that fence an
old owner; W written with the entries in one atomic step, and never above them; waiting for the acks of
dispatches, changelogs and pushes before the input counts as done; starting from what the stores say;
checks of keys, ids and ranges; poison records; members that are not inside the record; trimming of long
mailboxes; presence (everybody counts as online) and bodies in pushes; lost records after an exception or a
rebalance. So the comparison is in the baseline's favour.
"""
