"""Feeds the Outbox of a real log, runs both stages as real workers, and judges what they leave behind.

The judge knows what it fed and nothing else of the pipeline: every member of a message must find it in
his mailbox once, in order; W must be the log's end; every device that was online must have been pushed
each event that was not its own. Users' ordinals are made here, as the ordinal directory would.
"""

import itertools
import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from pydantic import SecretStr
from pyroaring import BitMap

from qim_streams import hlc
from qim_streams.commit import keys
from qim_streams.embedded.process import ChildProcess, child_env, start_child
from qim_streams.errors import RecordError
from qim_streams.ids import direct_conversation_id, event_id
from qim_streams.mailbox import watermark
from qim_streams.membership.bitmaps import encode
from qim_streams.membership.rows import encode_version
from qim_streams.placement import lane, mailbox_shard, ordinal_of, outbox_partition
from qim_streams.records import (
    OUTBOX_RELAYED,
    MessageRecord,
    OutboxRecord,
    Presence,
    decode_entry,
    decode_message,
    decode_outbox,
    decode_push,
    pack_ordinals,
    record_key,
)
from qim_streams.settings import Settings
from qim_streams.streaming.dead_letter_record import DeadLetter
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).resolve().parents[3]
TENANT = "acme"
OUTBOX, DISPATCH, PRESENCE, PUSH = "qim.outbox.v1", "qim.dispatch.v1", "qim.presence.v1", "qim.push.v1"
DEAD_LETTERS = "qim.dead-letter.v1"
AGENTS = {
    "fanout": "agents.fanout_coordinator",
    "mailbox": "agents.mailbox_node",
    "qsession": "agents.qsession",
}
LEASE_EPOCH = 1
COMMITTED_AT = 1_700_000_000_000


def stage_settings(brokers: str, redis_url: str, directory: Path) -> Settings:
    """Small counts, short clocks, the same rules."""
    return Settings(
        brokers=brokers,
        redis_url=SecretStr(redis_url),
        state_dir=directory,
        outbox_partitions=2,
        mailbox_shards=4,
        connection_shards=2,
        lease_ttl_ms=3_000,
        lease_renew_ms=700,
        stream_session_timeout_ms=3_000,
        mailbox_writebatch_max_entries=20,
        session_rows_per_dispatch_max=20,
    )


@dataclass
class Conversation:
    """A conversation with fixed members."""

    conversation_id: str
    members: tuple[str, ...]
    inline: bool
    seq: int = 0


@dataclass(frozen=True)
class Sent:
    """A message as it was fed."""

    conversation: Conversation
    seq: int
    message_id: bytes
    sender: str


@dataclass
class Stages:
    """The log, the hot tier, the workers, and an account of what was fed."""

    settings: Settings
    directory: Path
    sent: list[Sent] = field(default_factory=list)
    workers: dict[str, ChildProcess] = field(default_factory=dict)
    online: dict[tuple[str, str], int] = field(default_factory=dict)  # (user, device) -> connection_id
    exits: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.redis = redis.Redis.from_url(self.settings.redis_url.get_secret_value())
        self._producer = Producer(
            {
                "bootstrap.servers": self.settings.brokers,
                "linger.ms": 1,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        self._numbers = itertools.count(1)
        self._ordinals: dict[str, int] = {}

    def close(self) -> None:
        """Kill every worker."""
        for worker in self.workers.values():
            worker.kill()
        self.redis.close()

    # -- users and conversations

    def ordinal(self, user: str) -> int:
        """The user's ordinal."""
        if user not in self._ordinals:
            self._ordinals[user] = int(ordinal_of(len(self._ordinals), lane(TENANT, user)))
        return self._ordinals[user]

    def shard(self, user: str) -> int:
        """The user's MailboxShard."""
        return int(mailbox_shard(TENANT, user, self.settings.mailbox_shards))

    def partition(self, conversation: Conversation) -> int:
        """The conversation's Outbox partition."""
        return outbox_partition(TENANT, conversation.conversation_id, self.settings.outbox_partitions)

    def direct(self, first: str, second: str) -> Conversation:
        """A direct chat."""
        name = direct_conversation_id(TENANT, first, second)
        return Conversation(name, tuple(sorted({first, second})), inline=True)

    def group(self, name: str, members: Sequence[str], *, inline: bool = False) -> Conversation:
        """A group; unless `inline` its version and bitmaps are in the membership store."""
        group = Conversation(name, tuple(members), inline)
        tag, of = keys.base(self.partition(group)), keys.conversation(TENANT, name)
        shards = self.members_by_shard(group)
        self.redis.hset(f"{tag}gv:{of}", "1", encode_version(1, dict.fromkeys(shards, 1)))
        for shard, ordinals in shards.items():
            self.redis.hset(f"{tag}gb:{of}", f"{shard}:1", encode(BitMap(ordinals)))
        return group

    def members_by_shard(self, conversation: Conversation) -> dict[int, list[int]]:
        """Ordinals of the members, ascending, per shard."""
        found: dict[int, list[int]] = defaultdict(list)
        for user in conversation.members:
            found[self.shard(user)].append(self.ordinal(user))
        return {shard: sorted(ordinals) for shard, ordinals in found.items()}

    # -- feeding

    def send(self, conversation: Conversation, sender: str, device: str = "phone") -> Sent:
        """A new message, in the hot tier and in the Outbox."""
        conversation.seq += 1
        number = next(self._numbers)
        message_id = hlc.encode(COMMITTED_AT + number, 0, 1)
        message = MessageRecord(
            conversation.seq, 1, TENANT, conversation.conversation_id, message_id, message_id, sender,
            self.ordinal(sender), device, f"m{number}", 1, COMMITTED_AT, 0, 0, b"body %d" % number,
        )  # fmt: skip
        tag, of = (
            keys.base(self.partition(conversation)),
            keys.conversation(TENANT, conversation.conversation_id),
        )
        self.redis.hset(f"{tag}r:{of}", str(conversation.seq), message.encode())
        self.append_outbox(conversation, message, 0)
        sent = Sent(conversation, conversation.seq, message_id, sender)
        self.sent.append(sent)
        return sent

    def append_outbox(self, conversation: Conversation, message: MessageRecord, flags: int) -> bytes:
        """Append a message's Outbox record; its value."""
        members = None
        if conversation.inline:
            members = {s: (1, pack_ordinals(o)) for s, o in self.members_by_shard(conversation).items()}
        value = OutboxRecord(message.encode(), 1, flags, members).encode()
        key = record_key(TENANT, conversation.conversation_id)
        self.append(OUTBOX, self.partition(conversation), key, value)
        return value

    def repeat(self, sent: Sent, times: int = 1, **changes: object) -> None:
        """The message again, as the relay appends it; `changes` make it a forgery."""
        tag, of = (
            keys.base(self.partition(sent.conversation)),
            keys.conversation(TENANT, sent.conversation.conversation_id),
        )
        row = self.redis.hget(f"{tag}r:{of}", str(sent.seq))
        assert isinstance(row, bytes)
        message = decode_message(row)._replace(**changes)
        for _ in range(times):
            self.append_outbox(sent.conversation, message, OUTBOX_RELAYED)

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append a record; `flush` waits."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything appended is in the log."""
        assert self._producer.flush(30) == 0

    def come_online(self, user: str, device: str, connection_shard: int) -> int:
        """A device's presence, under a lease that is held; its connection_id."""
        connection_id = LEASE_EPOCH << 32 | next(self._numbers)
        presence = Presence(
            TENANT, user, self.ordinal(user), device, connection_shard, connection_id, 1, COMMITTED_AT
        )
        self.append(PRESENCE, self.shard(user), record_key(TENANT, user, device), presence.encode())
        self.online[user, device] = connection_id
        return connection_id

    def hold_connection_leases(self) -> None:
        """The gateways' leases, held for the whole test."""
        for number in range(self.settings.connection_shards):
            tag = f"{{cs:{number}}}"
            self.redis.set(f"{tag}:epoch", LEASE_EPOCH)
            self.redis.hset(f"{tag}:lease", mapping={"node": "gw", "boot": 1, "address": "gw"})
            self.redis.pexpire(f"{tag}:lease", 600_000)

    # -- workers

    def start(self, role: str, *, slot: int = 0, failpoints: str = "", web_port: int = 0) -> None:
        """Start (or restart) a worker in its own state directory; with a port also its web pages."""
        name = f"{role}-{slot}"
        state = self.directory / name
        state.mkdir(exist_ok=True)
        (state / "ready").unlink(missing_ok=True)
        settings = self.settings
        env = {
            "QIM_BROKERS": settings.brokers,
            "QIM_REDIS_URL": settings.redis_url.get_secret_value(),
            "QIM_STATE_DIR": str(state),
            "QIM_WORKER_SLOT": str(slot),
            "QIM_FAILPOINT": failpoints,
            "QIM_FAILPOINT_LATCH": str(state),
        }
        if web_port:
            env |= {"QIM_WEB_ENABLED": "true", "QIM_WEB_PORT": str(web_port)}
        for field_name in (
            "outbox_partitions", "mailbox_shards", "connection_shards", "lease_ttl_ms", "lease_renew_ms",
            "stream_session_timeout_ms", "mailbox_writebatch_max_entries", "mailbox_retention_s",
            "session_rows_per_dispatch_max", "session_projection",
        ):  # fmt: skip
            env[f"QIM_{field_name.upper()}"] = str(getattr(settings, field_name))
        argv = [sys.executable, "-m", "faust", "-A", AGENTS[role], "worker", "-l", "info"]
        self.workers[name] = start_child(
            name, argv, env=child_env(env, settings=False), log_path=self.directory / f"{name}.log", cwd=ROOT
        )

    def wait_ready(self, role: str, slot: int = 0) -> None:
        """Until a worker serves its partitions."""
        path = self.directory / f"{role}-{slot}" / "ready"
        eventually_sync(lambda: path.exists() and self.alive(f"{role}-{slot}"), 40, f"{role} to be ready")

    def alive(self, name: str) -> bool:
        """True, or AssertionError with the end of the log."""
        code = self.workers[name].poll()
        assert code is None, f"{name} ended with {code}\n{self.log_end(name)}"
        return True

    def log_end(self, name: str, lines: int = 40) -> str:
        """The last lines of a worker's log."""
        return "\n".join((self.directory / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def supervise(self, armed: dict[str, str]) -> None:
        """Restart workers that a failpoint killed; any other end is an AssertionError."""
        for name, worker in list(self.workers.items()):
            code = worker.poll()
            if code is None:
                continue
            assert code == -9, f"{name} ended with {code}\n{self.log_end(name)}"
            self.exits.append((name, code))
            role, slot = name.rsplit("-", 1)
            self.start(role, slot=int(slot), failpoints=armed.get(role, ""))

    # -- the judge

    def judge_outbox(self) -> None:
        """What was fed is in order: else nothing below could be. Repeats and poison left out."""
        last: dict[str, int] = defaultdict(int)
        wanted = {one.message_id for one in self.sent}
        for _, _, value in self.read(OUTBOX, self.settings.outbox_partitions):
            try:
                message = decode_message(decode_outbox(value or b"").message)
            except RecordError:
                continue
            if message.message_id in wanted and message.conversation_seq > last[message.conversation_id]:
                assert message.conversation_seq == last[message.conversation_id] + 1, "fed out of order"
                last[message.conversation_id] = message.conversation_seq

    def ready(self) -> dict[int, list[int]]:
        """from_seq of every PresenceReady, by connection."""
        found: dict[int, list[int]] = defaultdict(list)
        for _, _, value in self.read(PUSH, self.settings.connection_shards):
            for one in decode_push(value or b"").ready:
                found[one.connection_id].append(one.from_seq)
        return found

    def fetch(self, port: int, path: str) -> Any:
        """A page of a worker's web view, from JSON; None while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError):
            return None

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The end offset (exclusive) of every partition."""
        consumer = Consumer({"bootstrap.servers": self.settings.brokers, "group.id": "judge-ends"})
        try:
            return {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1]
                for p in range(partitions)
            }
        finally:
            consumer.close()

    def read(self, topic: str, partitions: int) -> list[tuple[int, int, bytes | None]]:
        """(partition, offset, value) of everything in a topic."""
        found: list[tuple[int, int, bytes | None]] = []
        consumer = Consumer(
            {
                "bootstrap.servers": self.settings.brokers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        deadline = time.monotonic() + 60
        try:
            for partition, end in self.ends(topic, partitions).items():
                consumer.assign([TopicPartition(topic, partition, 0)])
                at = 0
                while at < end:
                    assert time.monotonic() < deadline, f"{topic}[{partition}] was read to {at} of {end}"
                    for one in consumer.consume(1_000, timeout=0.5):
                        assert one.error() is None, one.error()
                        found.append((partition, one.offset(), one.value()))
                        at = one.offset() + 1
        finally:
            consumer.close()
        return found

    def watermark(self, shard: int) -> set[int]:
        """The different values of W's lanes."""
        packed = self.redis.hget(f"{{s:{shard}}}:w", "w")
        assert packed is None or isinstance(packed, bytes)
        return set(watermark.unpack(packed or watermark.NOTHING_PACKED))

    def everything_is_mailboxed(self) -> bool:
        """Whether every message is in every mailbox, as a cheap first look: counts only."""
        wanted = self.expected_counts()
        pipe = self.redis.pipeline(transaction=False)
        for user in wanted:
            pipe.xlen(self.mailbox_key(user))
        return pipe.execute() == list(wanted.values())

    def expected_counts(self) -> dict[str, int]:
        """How many entries each user must have."""
        counts: dict[str, int] = defaultdict(int)
        for one in self.sent:
            for user in one.conversation.members:
                counts[user] += 1
        return dict(counts)

    def mailbox_key(self, user: str) -> str:
        """The user's mailbox stream."""
        return f"{{s:{self.shard(user)}}}:mb:{TENANT}:{self.ordinal(user)}"

    def judge_mailboxes(self) -> int:
        """I1 I2 I3 I5 I11: each member has each message once, in order, nobody else; W is the log's end."""
        expected: dict[str, set[bytes]] = defaultdict(set)
        for one in self.sent:
            for user in one.conversation.members:
                expected[user].add(one.message_id)
        entries = 0
        for user in self._ordinals:
            rows = [decode_entry(fields[b"e"]) for _, fields in self.redis.xrange(self.mailbox_key(user))]
            held = [row.message_id for row in rows]
            assert len(held) == len(set(held)), f"{user} has a message twice"
            assert set(held) == expected[user], f"{user}: {len(held)} of {len(expected[user])}"
            last: dict[str, int] = defaultdict(int)
            for row in rows:
                expected_seq = last[row.conversation_id] + 1
                assert row.conversation_seq == expected_seq, f"{user} in {row.conversation_id}: out of order"
                last[row.conversation_id] = row.conversation_seq
                own = row.sender_id == user
                assert (row.flags & 1 == 0) == own
                assert (row.client_message_id is not None) == own
            entries += len(rows)
        for shard, end in self.ends(DISPATCH, self.settings.mailbox_shards).items():
            assert self.watermark(shard) == {end - 1}, f"shard {shard}: W {self.watermark(shard)}, end {end}"
        return entries

    def pushed_events(self) -> dict[tuple[str, str], list[bytes]]:
        """Event ids pushed to each (user, device), repeats included; checks bodies and addresses."""
        by_connection = {connection: who for who, connection in self.online.items()}
        found: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        for _, _, value in self.read(PUSH, self.settings.connection_shards):
            assert value is not None
            for item in decode_push(value).items:
                assert b"body " in item.common_body
                for one in item.recipients:
                    found[by_connection[one.connection_id]].append(one.event_id)
        return found

    def judge_pushes(self, since: int) -> int:
        """Every device got every event of `sent[since:]` that is its user's and not its own; extra copies."""
        found = self.pushed_events()
        repeats = 0
        for (user, device), events in ((who, found[who]) for who in self.online):
            wanted = {
                event_id(one.message_id, user)
                for one in self.sent[since:]
                if user in one.conversation.members and (one.sender, "phone") != (user, device)
            }
            assert wanted <= set(events), f"{user}/{device} missed {len(wanted - set(events))} pushes"
            own = {
                event_id(one.message_id, user) for one in self.sent if (one.sender, "phone") == (user, device)
            }
            assert not own & set(events), f"{user}/{device} was pushed its own message"
            repeats += len(events) - len(set(events))
        return repeats

    def dead_letters(self) -> list[DeadLetter]:
        """Everything in the dead-letter topic."""
        return [DeadLetter.decode(value) for _, _, value in self.read(DEAD_LETTERS, 1) if value is not None]
