"""What Faust lacks for a pipeline that may not lose a record, in one place.

Faust gives the consumer group, changelog tables and RocksDB; this package takes over what it does
wrong there (evidence: ``docs/decisions/0002-batch-transport-over-faust.md``):

1. ``doubt``: the one way out when a promise is in doubt, exit 70.
2. ``spec``, ``app``: an application with every setting that matters written out.
3. ``transport``, ``consumer``: records arrive as chunks, start at the stage's own watermark, and
   nothing is delivered early, twice or past a gap.
4. ``lanes``: one worker per partition and assignment: batch, handler, acknowledgement in order.
5. ``table``: changelog tables with explicit partitions and a real barrier.
6. ``producer``: appends through librdkafka, one future per call.
7. ``topics``, ``dead_letter`` with its record: the declared topics, and where poison records go.
8. ``watchdog``, ``web``: a stuck worker ends itself; read-only pages.
"""
