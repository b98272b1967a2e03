"""``qim config``: every setting is shown, no secret is, and what is wrong is one line per field."""

import json

import pytest
from click.testing import CliRunner, Result

from qim_streams.cli.config import MASK, config, unit_of
from qim_streams.settings import Settings

SECRET = "s3cret-" * 6


def run(*arguments: str, **environment: str) -> Result:
    """The command in an environment with these variables only."""
    return CliRunner().invoke(config, arguments, env=environment)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)


def test_every_setting_is_shown_with_its_section_and_meaning() -> None:
    document = json.loads(run("--json").output)
    assert {row["name"] for row in document["settings"]} == set(Settings.model_fields)
    for row in document["settings"]:
        assert row["section"], row
        assert row["description"], row
        assert row["variable"] == f"QIM_{row['name'].upper()}"
    assert document["problems"] == document["unknown"] == []


def test_the_text_has_every_variable_under_its_section() -> None:
    output = run(QIM_LEASE_TTL_MS="20000").output
    assert all(f"QIM_{name.upper()} " in output for name in Settings.model_fields)
    assert "[ownership]" in output
    (line,) = [line for line in output.splitlines() if "QIM_LEASE_TTL_MS" in line]
    assert line.split()[:4] == ["QIM_LEASE_TTL_MS", "20000", "15000", "ms"]


@pytest.mark.parametrize("flags", [(), ("--json",), ("--check",), ("--check", "--json")])
def test_no_secret_is_ever_printed(flags: tuple[str, ...]) -> None:
    result = run(*flags, QIM_JWT_SECRET=SECRET, QIM_REDIS_URL="redis://:pass9word@127.0.0.1/0")
    assert result.exit_code == 0
    assert SECRET not in result.output
    assert "pass9word" not in result.output


def test_a_secret_that_is_too_short_is_named_and_not_printed() -> None:
    result = run(QIM_JWT_SECRET="hunter2-short")
    assert result.exit_code == 1
    assert "jwt_secret: has 13 characters" in result.output
    assert "hunter2" not in result.output


def test_set_and_unset_secrets_can_be_told_apart() -> None:
    rows = {row["name"]: row for row in json.loads(run("--json", QIM_JWT_SECRET=SECRET).output)["settings"]}
    assert (rows["jwt_secret"]["value"], rows["jwt_secret"]["set"]) == (MASK, True)
    assert (rows["cursor_secret"]["value"], rows["cursor_secret"]["set"]) == ("", False)


def test_wrong_fields_are_one_line_each() -> None:
    result = run("--check", QIM_METRICS_PORT="99999", QIM_LEASE_TTL_MS="x", QIM_ARCHIVE="paper")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert len(lines) == 3
    assert {line.split(":")[0] for line in lines} == {"QIM_METRICS_PORT", "QIM_LEASE_TTL_MS", "QIM_ARCHIVE"}


def test_relations_between_settings_are_checked() -> None:
    result = run("--check", QIM_LEASE_RENEW_MS="9000")
    assert result.exit_code == 1
    assert "lease_renew_ms" in result.output


def test_unknown_variables_are_reported_and_fail_a_check() -> None:
    assert "QIM_LEASE_TTL: no setting reads this variable" in run(QIM_LEASE_TTL="5").output
    assert run(QIM_LEASE_TTL="5").exit_code == 0
    assert run("--check", QIM_LEASE_TTL="5").exit_code == 1
    assert json.loads(run("--json", QIM_LEASE_TTL="5").output)["unknown"] == ["QIM_LEASE_TTL"]


def test_a_clean_check_says_so() -> None:
    result = run("--check")
    assert result.exit_code == 0
    assert "settings are in order" in result.output


@pytest.mark.parametrize(
    ("name", "unit"),
    [("lease_ttl_ms", "ms"), ("jwt_leeway_s", "s"), ("frame_bytes_max", "bytes"), ("node_id", "")],
)
def test_units_follow_from_the_names(name: str, unit: str) -> None:
    assert unit_of(name) == unit
