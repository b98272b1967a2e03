"""Several calls at once, none left behind.

`asyncio.gather` raises the first error while the other calls go on: a caller that then repeats would run
beside them. Here every call has ended before the error is raised.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from qim_streams.errors import Policy, policy_of


async def all_of(calls: Sequence[Awaitable[None]]) -> None:
    """Run the calls at once and wait for every one; then raise the first error, a lasting one before a
    transient one."""
    if len(calls) == 1:
        await calls[0]
        return
    ended = await asyncio.gather(*calls, return_exceptions=True)
    errors = [one for one in ended if isinstance(one, BaseException)]
    if errors:
        raise min(errors, key=lambda error: policy_of(error) is Policy.RETRY)
