"""Restart budget, back-off and start order, with time as a number."""

import pytest

from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.roles import ROLES_MAX, RestartBudget, RestartPolicy, RoleSpec, start_groups

POLICY = RestartPolicy(restarts_max=5, window_s=60.0, backoff_first_s=0.2, backoff_last_s=1.0)


def test_delays_double_up_to_the_last_and_the_budget_ends() -> None:
    budget = RestartBudget(POLICY)
    assert [budget.next_delay_s(second) for second in range(6)] == [0.2, 0.4, 0.8, 1.0, 1.0, None]


def test_a_restart_leaves_the_budget_exactly_after_the_window() -> None:
    budget = RestartBudget(POLICY)
    for second in range(5):
        assert budget.next_delay_s(float(second)) is not None
    assert budget.next_delay_s(59.999) is None
    assert budget.next_delay_s(60.0) == 1.0  # the one of second 0 is out, the others still count
    assert budget.next_delay_s(60.5) is None


def test_after_a_quiet_window_the_delay_starts_small_again() -> None:
    budget = RestartBudget(POLICY)
    budget.next_delay_s(0.0)
    budget.next_delay_s(1.0)
    assert budget.next_delay_s(100.0) == 0.2


def test_a_role_that_dies_once_a_minute_is_restarted_for_ever() -> None:
    budget = RestartBudget(POLICY)
    assert all(budget.next_delay_s(60.0 * minute) == 0.2 for minute in range(1_000))


def test_a_budget_of_zero_gives_up_at_once() -> None:
    assert RestartBudget(RestartPolicy(restarts_max=0)).next_delay_s(0.0) is None


def test_groups_go_by_order_and_keep_the_given_sequence_inside() -> None:
    roles = [RoleSpec("c", (), order=2), RoleSpec("a", (), order=1), RoleSpec("b", (), order=2)]
    assert [[role.name for role in group] for group in start_groups(roles)] == [["a"], ["c", "b"]]


@pytest.mark.parametrize("name", ["", "Upper", "../escape", "a b", "x" * 60])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(EmbeddedError, match="role name"):
        start_groups([RoleSpec(name, ())])


def test_repeated_names_and_too_many_roles_are_refused() -> None:
    with pytest.raises(EmbeddedError, match="must be unique"):
        start_groups([RoleSpec("a", ()), RoleSpec("a", ())])
    with pytest.raises(EmbeddedError, match="are more than"):
        start_groups([RoleSpec(f"r{number}", ()) for number in range(ROLES_MAX + 1)])


def test_the_environment_of_a_role_is_not_printed() -> None:
    assert "hunter2" not in repr(RoleSpec("a", (), env={"QIM_JWT_SECRET": "hunter2"}))
