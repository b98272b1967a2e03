"""What the console refuses: an error of its own, with a name that the API knows (`api.failures.OWN_CODES`).

Spec: §11.
"""

from qim_streams.errors import POLICY, Policy, QimError


class ConsoleRefusal(QimError):
    """A request of an operator that cannot be met; nothing was changed."""

    def __init__(self, name: str, detail: str, *, field: str | None = None) -> None:
        super().__init__(f"{name}: {detail}")
        self.name, self.detail, self.field = name, detail, field


POLICY[ConsoleRefusal] = Policy.CRASH  # a row for the table: it never reaches a stream stage
