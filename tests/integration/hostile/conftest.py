"""A stack under siege: each test gets it as a `field`, sees honest clients served, and finds it unharmed.

The siege is a crowd of slow clients that begins with the first test of this directory and is looked at by the
last (`test_waiting_out.py`): all other attacks happen beside it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.hostile.siege import Siege
from tests.integration.hostile.victim import Victim
from tests.support.battlefield import Battlefield
from tests.support.honest import Honest
from tests.support.stack import StackProcess
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def siege(whole_stack: StackProcess) -> Iterator[Siege]:
    """Slow clients at gateway, API and writer, from now on."""
    field = Battlefield(whole_stack)
    with Siege(field.ports, each=12) as slow:
        yield slow


@pytest.fixture
def field(whole_stack: StackProcess, siege: Siege, begun: Victim) -> Iterator[Battlefield]:
    """The stack before an attack; unharmed after it."""
    stands = Battlefield(whole_stack)
    yield stands
    stands.unharmed()


@pytest.fixture
async def honest(field: Battlefield) -> AsyncIterator[Honest]:
    """Two who talk meanwhile; nothing of theirs is lost."""
    async with Honest(field) as pair:
        yield pair
        before = pair.sent
        await eventually(lambda: pair.sent >= before + 3, 60, "the honest to go on")


@pytest.fixture(scope="session")
def begun(whole_stack: StackProcess, siege: Siege) -> Victim:
    """Another tenant, with something of everything in it: made early, for its rows take a while to rest."""
    made = Victim(Battlefield(whole_stack))
    asyncio.run(made.begin())
    return made


@pytest.fixture(scope="session")
def victim(begun: Victim) -> Victim:
    """That tenant at rest."""
    begun.rest()
    return begun
