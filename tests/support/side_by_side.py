"""Which tests run in one process, in order, when several processes share the suites (pytest-xdist).

A file is one piece of work: what it starts for itself serves all of its tests. Files that use the same
running stack or servers are one piece, too, so that those start once. State machines start nothing and
take long: each is a piece of its own. Pieces are given out in the order of collection; name the long ones
first.
"""

from typing import Any

import pytest

# Directory or file -> the name of what its tests share.
TOGETHER = {
    "tests/integration/commit/": "the servers of the writers",
    "tests/integration/history/test_history_stack.py": "the whole stack",
    "tests/integration/loadgen/test_bench.py": "the whole stack",
    "tests/integration/scenarios/": "the whole stack",
    "tests/integration/archive/": "the log of the archivers",
}
APART = "tests/model/"


def piece_of(nodeid: str) -> str:
    """The piece of work to which a test belongs."""
    for path, shared in TOGETHER.items():
        if nodeid.startswith(path):
            return shared
    return nodeid if nodeid.startswith(APART) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out whole pieces."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPiece(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece_of(nodeid)

    config.option.loadscopereorder = False
    return ByPiece(config, log)
