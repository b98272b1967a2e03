"""What all tests share: the collector of figures (`tests/support/report.py`)."""

from tests.support.report import (
    figures,
    pytest_addoption,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_sessionfinish,
)

__all__ = [
    "figures",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
]
