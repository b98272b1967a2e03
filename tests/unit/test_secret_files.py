"""Secrets from files: read once at the start, never beside a value, named when they cannot be used."""

from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.settings import SECRET_FILE_BYTES_MAX, SECRETS, load_settings
from qim_streams.stack import secrets
from qim_streams.stack.plan import Addresses, StackOptions, plan_roles, role_names

SECRET = "f" * 40


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    """As an editor leaves it: with a line end."""
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.mark.parametrize("name", SECRETS)
def test_each_secret_may_come_from_a_file(
    name: str, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"QIM_{name.upper()}_FILE", str(secret_file))
    settings = load_settings()
    assert settings.secret(name) == SECRET.encode()
    assert SECRET not in repr(settings)


def test_the_url_of_redis_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "redis_url"
    path.write_text("redis://qim:pw@redis:6379/0\n")
    monkeypatch.delenv("QIM_REDIS_URL", raising=False)
    monkeypatch.setenv("QIM_REDIS_URL_FILE", str(path))
    assert load_settings().redis_url.get_secret_value() == "redis://qim:pw@redis:6379/0"
    (plan, *_) = plan_roles(
        StackOptions(tmp_path), Addresses("b:1", "redis://c"), {}, {}, {"QIM_REDIS_URL_FILE": str(path)}
    )
    assert plan.env["QIM_REDIS_URL"] == "redis://c"
    assert "QIM_REDIS_URL_FILE" not in plan.env


def test_a_value_beside_a_file_is_refused(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIM_JWT_SECRET", "e" * 40)
    monkeypatch.setenv("QIM_JWT_SECRET_FILE", str(secret_file))
    with pytest.raises(ConfigError, match="jwt_secret: is set beside jwt_secret_file; unset one"):
        load_settings()
    with pytest.raises(ConfigError, match="QIM_JWT_SECRET: is set beside QIM_JWT_SECRET_FILE"):
        secrets.load_or_make(
            secret_file.parent,
            lambda: "d" * 48,
            {"QIM_JWT_SECRET": "e" * 40, "QIM_JWT_SECRET_FILE": str(secret_file)},
        )
    monkeypatch.setenv("QIM_JWT_SECRET", "")  # an empty variable is an unset one
    assert load_settings().secret("jwt_secret") == SECRET.encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "FileNotFoundError"),
        (b"\xff" * 40, "UnicodeDecodeError"),
        (b" \n", "empty"),
        (b"x" * (SECRET_FILE_BYTES_MAX + 1), "over 4096 bytes"),
        (b"short", "has 5 characters"),
    ],
)
def test_a_file_that_is_none_is_named(
    content: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("QIM_CURSOR_SECRET_PREVIOUS_FILE", str(path))
    with pytest.raises(ConfigError, match=rf"cursor_secret_previous.*{why}"):
        load_settings()


def test_a_stack_takes_files_and_hands_the_secret_on(secret_file: Path) -> None:
    """`qim up` reads them once; its roles get the secret and not the file's name beside it."""
    environ = {
        "QIM_JWT_SECRET_FILE": str(secret_file),
        "QIM_JWT_SECRET_PREVIOUS_FILE": str(secret_file),  # not drawn by a stack: the roles read it
    }
    drawn = secrets.load_or_make(secret_file.parent, lambda: "d" * 48, environ)
    assert drawn == dict.fromkeys(secrets.NAMES, "d" * 48) | {"jwt_secret": SECRET}
    options = StackOptions(state_dir=secret_file.parent)
    ports = {name: 1 for name, _, _ in role_names(options)}
    for role in plan_roles(options, Addresses("b:1", "redis://r"), drawn, ports, environ):
        assert role.env["QIM_JWT_SECRET"] == SECRET
        assert "QIM_JWT_SECRET_FILE" not in role.env
        assert role.env["QIM_JWT_SECRET_PREVIOUS_FILE"] == str(secret_file)
