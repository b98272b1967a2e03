"""What all tests share: the collector of figures (`tests/support/report.py`), how tests are shared out to
processes (`tests/support/side_by_side.py`), and no clock in properties.

Hypothesis fails an example that takes over 200 ms by default: on a busy machine that says nothing.
"""

from hypothesis import HealthCheck, settings

from tests.support.cassandra_node import cassandra_node, cassandra_options
from tests.support.report import (
    figures,
    pytest_addoption,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_sessionstart,
)
from tests.support.side_by_side import pytest_xdist_make_scheduler

__all__ = [
    "cassandra_node",
    "cassandra_options",
    "figures",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_sessionstart",
    "pytest_xdist_make_scheduler",
]

settings.register_profile("qim", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qim")
