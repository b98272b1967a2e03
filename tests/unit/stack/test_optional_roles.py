"""Which processes a local stack may do without. Spec: §9."""

from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.stack import run
from qim_streams.stack.plan import StackOptions, role_names


def names(options: StackOptions) -> set[str]:
    """The processes of a plan."""
    return {name for name, _, _ in role_names(options)}


def test_qsession_is_there_and_scales() -> None:
    assert "qsession" in names(StackOptions(Path("/s")))
    assert {"qsession", "qsession-1"} <= names(StackOptions(Path("/s"), workers={"qsession": 2}))


def test_qsession_may_be_left_out() -> None:
    assert names(StackOptions(Path("/s"))) - names(
        StackOptions(Path("/s"), without=frozenset({"qsession"}))
    ) == {"qsession"}


@pytest.mark.parametrize("role", ["mailbox", "gateway", "nobody"])
def test_others_may_not(role: str) -> None:
    with pytest.raises(ConfigError, match=role):
        role_names(StackOptions(Path("/s"), without=frozenset({role})))


def test_not_beside_workers_of_the_same_role() -> None:
    with pytest.raises(ConfigError, match="qsession"):
        role_names(StackOptions(Path("/s"), workers={"qsession": 2}, without=frozenset({"qsession"})))


@pytest.mark.parametrize("keeper", ["qsession", "mailbox"])
def test_the_mailbox_workers_may_keep_the_lists(monkeypatch: pytest.MonkeyPatch, keeper: str) -> None:
    """QIM_SESSION_PROJECTION=mailbox: no qsession is started, however many were asked for."""
    monkeypatch.setenv("QIM_SESSION_PROJECTION", keeper)
    planned = names(run._without_unwanted(StackOptions(Path("/s"), workers={"qsession": 2})))
    assert ("qsession" in planned) == (keeper == "qsession")


@pytest.mark.parametrize("providers", ["", "apns,webhook"])
def test_notifications_are_sent_where_a_provider_is_named(
    monkeypatch: pytest.MonkeyPatch, providers: str
) -> None:
    """QIM_NOTIFICATION_PROVIDERS switches the role on; without it an idle process is spared."""
    monkeypatch.setenv("QIM_NOTIFICATION_PROVIDERS", providers)
    planned = names(run._without_unwanted(StackOptions(Path("/s"), workers={"notification": 2})))
    assert ({"notification", "notification-1"} <= planned) == bool(providers)
    assert bool(providers) or not any(name.startswith("notification") for name in planned)
