"""Which tests run in one process, in order, when several processes share the suites (pytest-xdist).

A file is one piece of work: what it starts for itself serves all of its tests. Files that use the same
running stack or servers are one piece, too, so that those start once. State machines start nothing and
take long: each is a piece of its own. Pieces are given out in the order of collection; name the long ones
first.
"""

from fnmatch import fnmatch
from typing import Any

import pytest

# Files (a pattern) -> the name of what their tests share.
TOGETHER = {
    "tests/integration/commit/*": "the servers of the writers",
    "tests/integration/history/*_stack.py": "the whole stack",
    "tests/integration/hostile/*": "the whole stack",
    "tests/integration/loadgen/test_bench.py": "the whole stack",
    "tests/integration/scenarios/*": "the whole stack",
}
APART = "tests/model/"


def piece_of(nodeid: str) -> str:
    """The piece of work to which a test belongs."""
    path = nodeid.split("::", 1)[0]
    for files, shared in TOGETHER.items():
        if fnmatch(path, files):
            return shared
    return nodeid if nodeid.startswith(APART) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out whole pieces."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPiece(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece_of(nodeid)

    config.option.loadscopereorder = False
    return ByPiece(config, log)
