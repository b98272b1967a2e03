"""The people of the scenarios, for history on the whole stack."""

from tests.integration.scenarios.conftest import cast

__all__ = ["cast"]
