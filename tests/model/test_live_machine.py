"""The live stream against a mailbox stage that restarts, a log that keeps order, and a client that stalls.

The world: one user's entries become visible one after the other; owners of the shard push them, die
between W and push, come back with a higher epoch and promise PresenceReady once they are caught up; old
owners still say things. Everything reaches the stream through one ordered log. The client may be online
or not, may be a slow reader, pulls when it was told LIVE_LOST.

At every step (T-M3's live half; A4, A5, C2, P7): events are sent in order, each once, never before
ONLINE_READY, and never past a gap unless LIVE_LOST was said. After healing: every entry above sync_to_seq
was sent or pulled.
"""

import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from qim_streams.gateway.live import Fill, LiveStream, Phase
from qim_streams.sync.pull import PulledEvent

RUNS = int(os.environ.get("QIM_TEST_LIVE_RUNS", "1500"))
STEPS = 70
Word = tuple[str, int, int]  # push or ready, epoch, seq


def event(seq: int) -> PulledEvent:
    """An event at a seq."""
    return PulledEvent(seq, 0, seq.to_bytes(16, "big"), 3, 0, None, b"body" * 10)


class LiveWorld:
    """See the module text. Every public method is one step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sync_to = self.visible = self.pushed_through = rng.randrange(-1, 6)
        self.stream = LiveStream(self.sync_to, rng.choice([300, 1_000, 100_000]))
        self.entries: list[int] = []  # those above sync_to
        self.epoch = 1
        self.knows = False  # the present owner has this device in its cache, and pushes to it
        self.promised = False  # and has said so
        self.log: deque[Word] = deque()
        self.old_words: list[Word] = []
        self.online = self.full = self.told_lost = False
        self.fill: Fill | None = None
        self.sent: list[int] = []
        self.pulled: set[int] = set()
        self.lost_to = -1
        self.looked = 0

    # -- the mailbox stage

    def write(self) -> None:
        """A record becomes visible; it may be for others."""
        self.visible += self.rng.randrange(1, 4)
        if self.rng.random() < 0.7:
            self.entries.append(self.visible)

    def push(self) -> None:
        """The owner pushes some visible seqs."""
        end = min(self.visible, self.pushed_through + self.rng.randrange(1, 9))
        for seq in self.entries:
            if self.knows and self.pushed_through < seq <= end:
                self.log.append(("push", self.epoch, seq))
        self.pushed_through = end

    def hear_of_presence(self) -> None:
        """The presence record reaches the owner: it knows the device and promises."""
        if not self.knows:
            self.knows = True
            self.promise()

    def promise(self) -> None:
        """An owner that has taken over pushes what it replays before it is caught up and promises."""
        if self.knows and not self.promised:
            self.promised = True
            self.log.append(("ready", self.epoch, self.pushed_through))

    def restart_owner(self) -> None:
        """The owner dies after W, before it pushed; some of its words arrive after its successor's."""
        if self.rng.random() < 0.6:
            return
        for _ in range(self.rng.randrange(0, min(3, len(self.log) + 1))):
            self.old_words.append(self.log.pop())
        self.epoch += 1
        self.pushed_through = self.visible
        self.knows, self.promised = self.rng.random() < 0.8, False

    def late_word(self) -> None:
        """An old owner is heard again."""
        if self.old_words:
            self.log.append(self.old_words.pop())

    # -- the gateway

    def read_log(self) -> None:
        """The gateway handles some words of the push log."""
        for _ in range(min(self.rng.randrange(1, 6), len(self.log))):
            what, epoch, seq = self.log.popleft()
            if what == "ready":
                self.take(self.stream.ready(epoch, seq))
                continue
            if self.full and self.stream.phase is Phase.FLOWING:
                self.lose(seq)
            self.send(self.stream.push(epoch, [event(seq)]))

    def go_online(self) -> None:
        """ONLINE_READY is sent."""
        if not self.online and self.rng.random() < 0.3:
            self.online = True
            self.take(self.stream.online())

    def run_fill(self) -> None:
        """A piece of the running fill is read and sent."""
        fill = self.fill
        if fill is None:
            return
        if self.stream.phase is not Phase.FILLING:
            self.fill = None
            return
        through = max(fill.after_seq, min(fill.up_to_seq, fill.after_seq + self.rng.randrange(1, 6)))
        self.send([event(seq) for seq in self.entries if fill.after_seq < seq <= through])
        step = self.stream.filled(through)
        self.fill = step if isinstance(step, Fill) else None
        if not isinstance(step, Fill):
            self.send(step)

    def fail_fill(self) -> None:
        """The store does not answer for too long."""
        if self.fill is not None and self.stream.phase is Phase.FILLING and self.rng.random() < 0.2:
            self.fill = None
            self.lose(self.stream.owed)

    def look_at_the_store(self) -> None:
        """The push log is not trusted: W is read, and the mailbox between position and W."""
        if not self.stream.may_fill or self.rng.random() < 0.5:
            return
        position = self.stream.position
        if any(position < seq <= self.visible for seq in self.entries):
            self.take(self.stream.behind(self.visible))
        else:
            self.stream.nothing_until(self.visible)
        self.looked += 1

    # -- the client

    def stall(self) -> None:
        """The client stops or starts reading."""
        self.full = self.rng.random() < 0.3

    def pull(self) -> None:
        """After LIVE_LOST the client pulls from what it has without a gap, perhaps only a part."""
        if not self.told_lost:
            return
        after = self.covered()
        through = max(after, min(self.visible, self.lost_to + self.rng.randrange(-4, 5)))
        self.pulled |= {seq for seq in self.entries if after < seq <= through}
        if through >= self.lost_to:
            self.told_lost = False
        self.take(self.stream.pulled(after, through))

    # -- checks

    def covered(self) -> int:
        """The end of what the client has without a gap."""
        have, end = set(self.sent) | self.pulled, self.sync_to
        for seq in self.entries:
            if seq not in have:
                break
            end = seq
        return end

    def take(self, fill: Fill | None) -> None:
        """A fill is to be run instead of the one before."""
        if fill is not None:
            self.fill = fill

    def lose(self, up_to: int) -> None:
        """LIVE_LOST is said."""
        self.lost_to = self.stream.lose(up_to)
        self.told_lost = True

    def send(self, events: Sequence[PulledEvent]) -> None:
        """PUSH_EVENTS: in order, once, above sync_to, after ONLINE_READY, and with nothing left out."""
        for one in events:
            assert self.sync_to < one.mailbox_seq <= self.visible
            assert self.online, "pushed before ONLINE_READY"
            assert not self.sent or one.mailbox_seq > self.sent[-1], f"{one.mailbox_seq} after {self.sent}"
            self.sent.append(one.mailbox_seq)
        if self.sent and not self.told_lost:
            have = set(self.sent) | self.pulled
            assert all(seq in have for seq in self.entries if seq < self.sent[-1]), "sent past a gap"

    def see_the_store(self) -> None:
        """Nobody pushes and nobody promises: whoever is online has everything all the same (E4)."""
        for _ in range(60):
            self.look_at_the_store()
            while self.fill is not None:
                self.run_fill()
            self.pull()
        if self.online:
            missing = set(self.entries) - set(self.sent) - self.pulled
            assert not missing, sorted(missing)

    def heal(self) -> None:
        """The owner lives, knows the device and pushes all; the client reads, pulls and is online."""
        self.full = False
        if not self.online:
            self.online = True
            self.take(self.stream.online())
        self.hear_of_presence()
        self.promise()
        for _ in range(60):
            self.push()
            while self.log:
                self.read_log()
            while self.fill is not None:
                self.run_fill()
            self.pull()
            if self.pushed_through == self.visible and self.stream.phase is Phase.FLOWING:
                break
        assert self.stream.phase is Phase.FLOWING, self.stream.phase
        missing = set(self.entries) - set(self.sent) - self.pulled
        assert not missing, sorted(missing)


STEPS_OF_LIFE: tuple[Callable[[LiveWorld], None], ...] = (
    LiveWorld.write,
    LiveWorld.write,
    LiveWorld.push,
    LiveWorld.push,
    LiveWorld.hear_of_presence,
    LiveWorld.promise,
    LiveWorld.restart_owner,
    LiveWorld.late_word,
    LiveWorld.read_log,
    LiveWorld.read_log,
    LiveWorld.go_online,
    LiveWorld.run_fill,
    LiveWorld.run_fill,
    LiveWorld.fail_fill,
    LiveWorld.look_at_the_store,
    LiveWorld.stall,
    LiveWorld.pull,
)


def simulate(seed: int) -> LiveWorld:
    """One life; an AssertionError carries seed and steps."""
    rng = random.Random(seed)
    world, done = LiveWorld(rng), []
    try:
        for _ in range(STEPS):
            step = rng.choice(STEPS_OF_LIFE)
            done.append(step.__name__)
            step(world)
        if rng.random() < 0.5:
            world.see_the_store()
        world.heal()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}; steps: {' '.join(done)}") from error
    return world


def test_live_streams_keep_their_promise() -> None:
    """Many short lives; every phase and every kind of loss is met."""
    first = time.time_ns() % 2**32
    print(f"seeds {first} to {first + RUNS - 1}")
    lost = filled = restarted = looked = 0
    for seed in range(first, first + RUNS):
        world = simulate(seed)
        lost += world.lost_to >= 0
        filled += bool(set(world.sent))
        restarted += world.epoch > 1
        looked += world.looked > 0
    counts = lost, filled, restarted, looked
    assert min(counts) > RUNS // 20, counts
