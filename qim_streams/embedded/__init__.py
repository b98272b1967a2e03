"""Local broker, local Redis and the process supervisor: the one-command start on one machine.

Reading order: `process` (a child that dies with its parent), `ports`, `maven` (jars by version and
checksum), `server` (what every local server shares), `kafka`, `tansu`, `redis_server`, `stack` (all of
them under one state directory), `roles` and `supervisor` (the workers of `qim up`).

The usual entry points::

    from qim_streams.embedded.kafka import EmbeddedKafka
    from qim_streams.embedded.redis_server import EmbeddedRedis
    from qim_streams.embedded.stack import EmbeddedStack
    from qim_streams.embedded.supervisor import Supervisor

Meant for development, demonstrations, tests and single-machine use: one broker, one Redis, no
replication. Nothing here is imported by a worker role.
"""
