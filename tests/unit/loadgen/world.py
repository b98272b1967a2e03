"""A small plan, ledgers, and a perfect run that tests then damage."""

from qim_streams.loadgen.ledger import Ledger
from qim_streams.loadgen.message import message_key
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.plan import Plan, make_plan

GROUP = 0


def group_plan(members: int = 4, users: int = 4) -> Plan:
    """One group of all users in two processes."""
    options = BenchOptions(
        workload="group", group_size=members, users=users, connections=users, groups=1, processes=2
    )
    return make_plan(options, "t", "demo")


class World:
    """A plan and the ledgers of its processes; `say` sends a message and delivers it to everybody else."""

    def __init__(self, members: int = 4) -> None:
        self.plan = group_plan(members, members)
        self.ledgers = [Ledger(number) for number in range(2)]
        self.numbers = [0, 0]
        self.seq = 0

    def send(self, user: int) -> tuple[int, int]:
        """An acknowledged message; (key, conversation_seq)."""
        process = user % 2
        number, self.numbers[process] = self.numbers[process], self.numbers[process] + 1
        self.seq += 1
        ledger = self.ledgers[process]
        ledger.sent += 1
        ledger.ack(number, user, GROUP, self.seq)
        return message_key(process, number), self.seq

    def deliver(self, user: int, key: int, seq: int, *, fresh: bool = True, live: bool = True) -> bool:
        """One device gets it."""
        return self.ledgers[user % 2].deliver(user, GROUP, seq, key, fresh, live)

    def say(self, user: int, *, but: tuple[int, ...] = ()) -> tuple[int, int]:
        """A message that comes to all members, those of `but` excepted."""
        key, seq = self.send(user)
        for other in self.plan.conversations[GROUP].members:
            if other != user and other not in but:
                self.deliver(other, key, seq)
        return key, seq
