"""What a role under test finds in Redis when those who would be there are not: they have done their part.

A stack's writers prove partitions whole, and mailbox workers own the shards; a gateway lets nobody in before.
"""

import redis

from qim_streams.settings import Settings


def prove_everything(settings: Settings) -> None:
    """Every Outbox partition is whole for this run of the server, every MailboxShard has had an owner."""
    with redis.Redis.from_url(settings.redis_url.get_secret_value()) as client:
        run = client.info("server")["run_id"]
        pipe = client.pipeline(transaction=False)
        for partition in range(settings.outbox_partitions):
            pipe.set(f"{{ob:{partition}}}:whole", run)
        for shard in range(settings.mailbox_shards):
            pipe.setnx(f"{{s:{shard}}}:epoch", 1)
        pipe.execute()
