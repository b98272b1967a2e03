"""The verdict finds what is planted: lost, duplicated, reordered, damaged, unknown, delivered in error."""

import random

import pytest

from qim_streams.loadgen.ledger import Ledger, Stream
from qim_streams.loadgen.message import message_key
from qim_streams.loadgen.verdict import Verdict, judge
from tests.unit.loadgen.world import GROUP, World


def verdict(world: World) -> Verdict:
    """The judgement over all users."""
    return judge(world.plan, world.ledgers, range(world.plan.users))


def busy_world() -> World:
    """Twenty messages, all well."""
    world = World()
    for at in range(20):
        world.say(at % 4)
    return world


def test_a_perfect_run_is_clean() -> None:
    found = verdict(busy_world())
    assert found.clean
    assert (found.sent, found.acked, found.delivered_expected, found.delivered) == (20, 20, 60, 60)
    assert not found.missing


def test_a_run_without_any_ack_is_not_clean() -> None:
    assert not verdict(World()).clean


def test_a_lost_message_turns_the_verdict() -> None:
    world = busy_world()
    _, seq = world.say(1, but=(2,))
    found = verdict(world)
    assert not found.clean
    assert found.lost == 1
    (missing,) = found.missing
    assert (missing.user, missing.conversation, missing.first_seq) == (2, GROUP, seq)


def test_what_is_lost_for_an_unchecked_user_is_not_counted() -> None:
    world = busy_world()
    world.say(1, but=(2,))
    assert judge(world.plan, world.ledgers, [0, 1, 3]).clean


def test_a_message_found_by_pull_is_not_lost() -> None:
    world = busy_world()
    key, seq = world.say(1, but=(2,))
    assert world.deliver(2, key, seq, fresh=False, live=False)
    found = verdict(world)
    assert found.clean
    assert found.pulled == 1


def test_a_repeat_under_the_same_position_is_raw_and_under_another_visible() -> None:
    world = busy_world()
    key, seq = world.say(0)
    assert not world.deliver(1, key, seq, fresh=False)
    found = verdict(world)
    assert found.clean
    assert (found.duplicated_raw, found.duplicated_visible) == (1, 0)
    world.deliver(1, key, seq, fresh=True)
    found = verdict(world)
    assert not found.clean
    assert found.duplicated_visible == 1


def test_a_message_that_was_committed_twice_is_a_visible_duplicate() -> None:
    world = busy_world()
    key, _ = world.say(0)
    world.seq += 1
    for user in (1, 2, 3):
        world.deliver(user, key, world.seq)
    found = verdict(world)
    assert not found.clean
    assert found.duplicated_visible == 2  # once per process: users 1 and 3 are in the same


def test_a_step_back_on_the_live_stream_is_a_reordering() -> None:
    world = busy_world()
    first = world.send(0)
    second = world.send(2)
    for key, seq in (second, first):
        world.deliver(1, key, seq)
    for user in (3, 2):
        world.deliver(user, *first)
    for user in (3, 0):
        world.deliver(user, *second)
    found = verdict(world)
    assert not found.clean
    assert (found.reordered, found.lost) == (1, 0)


def test_what_is_pulled_has_no_order() -> None:
    world = busy_world()
    first, second = world.send(0), world.send(0)
    world.deliver(1, *second)
    world.deliver(1, *first, live=False)
    assert verdict(world).reordered == 0


def test_a_damaged_body_turns_the_verdict() -> None:
    world = busy_world()
    world.ledgers[0].counts["damaged"] += 1
    found = verdict(world)
    assert not found.clean
    assert found.reasons == {"damaged": 1}


def test_an_unknown_outcome_turns_the_verdict() -> None:
    world = busy_world()
    world.ledgers[1].sent += 1
    found = verdict(world)
    assert found.unknown == 1
    assert not found.clean


def test_a_refusal_is_known_and_clean_unless_it_was_delivered() -> None:
    world = busy_world()
    ledger = world.ledgers[0]
    number, ledger.sent = world.numbers[0], ledger.sent + 1
    ledger.refused[number] = 400
    found = verdict(world)
    assert found.clean
    assert (found.refused, found.unknown) == (1, 0)
    world.deliver(1, message_key(0, number), world.seq + 1)
    found = verdict(world)
    assert found.reasons == {"delivered_after_refusal": 1}
    assert not found.clean


def test_another_message_than_the_acknowledged_one_turns_the_verdict() -> None:
    world = busy_world()
    _, seq = world.send(0)
    for user in (1, 2, 3):
        world.deliver(user, message_key(7, 7), seq)
    assert verdict(world).reasons["another_message_than_acknowledged"] == 2
    assert not verdict(world).clean


def test_two_messages_at_one_place_are_seen_inside_a_process() -> None:
    world = busy_world()
    _, seq = world.say(0)
    world.deliver(1, message_key(1, 999), seq, fresh=False)
    assert not verdict(world).clean


def test_two_acks_for_one_place_turn_the_verdict() -> None:
    world = busy_world()
    world.ledgers[1].sent += 1
    world.ledgers[1].ack(world.numbers[1], 1, GROUP, world.seq)
    assert verdict(world).reasons["two_acks_for_one_place"] == 1


def test_overtaken_messages_of_a_sender_are_information() -> None:
    world = busy_world()
    ledger = world.ledgers[0]
    ledger.sent += 2
    for number, seq in ((100, 102), (101, 101)):
        ledger.ack(number, 0, GROUP, seq)
        for user in (1, 2, 3):
            world.ledgers[user % 2].deliver(user, GROUP, seq, message_key(0, number), True, False)
    found = verdict(world)
    assert (found.overtaken, found.clean) == (1, True)


@pytest.mark.parametrize("seed", range(5))
def test_random_losses_are_counted_exactly(seed: int) -> None:
    print(f"seed {seed}")
    rng, world, lost = random.Random(seed), World(8), 0
    for _ in range(300):
        sender = rng.randrange(8)
        but = tuple(user for user in range(8) if user != sender and rng.random() < 0.02)
        lost += len(but)
        world.say(sender, but=but)
    found = verdict(world)
    assert found.lost == lost
    assert found.delivered == found.delivered_expected - lost


def test_a_stream_may_start_anywhere_and_grow_both_ways() -> None:
    stream = Stream(1_000_000)
    seqs = [1_000_000, 1_000_003, 999_990, 1_002_000, 17]
    assert all(stream.add(seq) for seq in seqs)
    assert not any(stream.add(seq) for seq in seqs)
    assert stream.mask() == sum(1 << seq for seq in seqs)


def test_acks_come_back_as_they_went_in() -> None:
    ledger = Ledger(3)
    ledger.ack(5, 7, 2, 2**40)
    assert list(map(tuple, ledger.acks())) == [(2, 2**40, 5, 7)]
