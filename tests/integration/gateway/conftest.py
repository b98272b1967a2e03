"""Every test here runs on both event loops: uvloop is what production uses, asyncio what it must match."""

import asyncio

import pytest
import uvloop


@pytest.fixture(params=[uvloop.EventLoopPolicy, asyncio.DefaultEventLoopPolicy], ids=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The policy that pytest-asyncio takes."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy
