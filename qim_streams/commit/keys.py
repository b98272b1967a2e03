"""Redis keys of an Outbox partition. All share one hash tag, so one script may touch any of them.

==============================================  ======  ===============================================
``{ob:p}:epoch``                                string  epoch of the partition's owner (`ownership`)
``{ob:p}:call``                                 string  ``epoch number`` of the last commit or change
``{ob:p}:pend``                                 hash    message_id -> tenant NUL conversation NUL seq of
                                                        what is RESERVED: committed, not confirmed
``{ob:p}:tail``                                 string  highest Outbox offset that was confirmed
``{ob:p}:fence``                                string  epoch of the last barrier up to that offset
``{ob:p}:gtail``                                string  highest offset of the change log that was settled
``{ob:p}:whole``                                string  run of the server for which nothing is missing
``{ob:p}:accept``                               string  Outbox offset below which losses are accepted
``{ob:p}:gpend``                                hash    ``c`` -> version that the change log may lack
``{ob:p}:c:<c>``                                hash    head of a conversation
``{ob:p}:r:<c>``                                hash    conversation_seq -> MessageRecord
``{ob:p}:hot``                                  zset    ``c`` -> when messages of it were last archived,
                                                        ms; what has archived messages in ``r`` only
``{ob:p}:d:<c>:<sender>:<client_message_id>``   string  dedup: digest 16, message_id 16, seq u64,
                                                        membership version u64, committed_at u64, and of
                                                        an edit or recall its revision u16; expires
``{ob:p}:gm:<c>``                               hash    user -> member row (`membership.rows`)
``{ob:p}:gi:<c>``                               zset    active members, score 0, in order of their ids
``{ob:p}:gv:<c>``                               hash    version -> version row (`membership.rows`)
``{ob:p}:gb:<c>``                               hash    ``shard:bitmap version`` -> RoaringBitmap
==============================================  ======  ===============================================

``<c>`` is ``tenant:conversation``; no id contains ``:``.

Head fields: ``kind seq last_id mv name send_policy join_policy history_policy members_max active
created_at creator dismissed token oldest hot_from archived_seq``; ``mv`` is the current version,
``token`` the last change's, ``oldest`` the oldest version still kept, ``hot_from`` the seq below which
messages were trimmed, ``archived_seq`` the last one that the archive watermark covers.
"""

from importlib import resources

from qim_streams.redis_tier import Script


def base(partition: int) -> str:
    """The hash tag of a partition, with the colon behind it."""
    return f"{{ob:{partition}}}:"


def conversation(tenant_id: str, conversation_id: str) -> str:
    """``<c>`` of the key table."""
    return f"{tenant_id}:{conversation_id}"


def fenced_script(package: str, *names: str) -> Script:
    """Script files, one behind the other, with the functions of ``fence.lua`` in front."""
    fence = resources.files("qim_streams.commit").joinpath("fence.lua").read_text()
    return Script(fence + "".join(resources.files(package).joinpath(name).read_text() for name in names))
