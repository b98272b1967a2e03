"""What an operator may set for one tenant, and how it is read back from text. Pure.

A tenant without a value of its own has the deployment's default; None means exactly that.

Spec: §3.2, §6, §13.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

FANOUT_MAX: Final = 1_000_000_000  # recipients per second
FANOUT_FIELD: Final = "fanout_per_s"
LOGIN_FIELD: Final = "multi_login"

ALL_DEVICES: Final = "all"
ONE_PER_PLATFORM: Final = "platform"
NEWEST_ONLY: Final = "newest"
LOGIN_POLICIES: Final = (ALL_DEVICES, ONE_PER_PLATFORM, NEWEST_ONLY)


class TenantRules(NamedTuple):
    """`fanout_per_s`: recipients per second, 0 without a bound. `multi_login`: one of `LOGIN_POLICIES`."""

    fanout_per_s: int | None = None
    multi_login: str | None = None


NO_RULES: Final = TenantRules()


def check(rules: TenantRules) -> str | None:
    """What is wrong, naming the field; None when the rules can be kept."""
    if rules.fanout_per_s is not None and not 0 <= rules.fanout_per_s <= FANOUT_MAX:
        return f"{FANOUT_FIELD}: not between 0 and {FANOUT_MAX}"
    if rules.multi_login is not None and rules.multi_login not in LOGIN_POLICIES:
        return f"{LOGIN_FIELD}: none of {', '.join(LOGIN_POLICIES)}"
    return None


def fields_of(rules: TenantRules) -> dict[str, str]:
    """The rules as stored: only what is set."""
    found = {FANOUT_FIELD: rules.fanout_per_s, LOGIN_FIELD: rules.multi_login}
    return {name: str(value) for name, value in found.items() if value is not None}


def rules_of(fields: Mapping[str, str]) -> TenantRules:
    """Stored rules; a value that cannot be one counts as not set, as does one of a later version."""
    number = fields.get(FANOUT_FIELD, "")
    fanout = int(number) if number.isdecimal() and int(number) <= FANOUT_MAX else None
    login = fields.get(LOGIN_FIELD)
    return TenantRules(fanout, login if login in LOGIN_POLICIES else None)
