"""The file of webhooks: checked whole, every mistake named by entry and field, secrets never shown."""

from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.webhooks.endpoints import load_webhooks

SECRET = "s" * 40


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "webhooks.yaml"
    path.write_text(text)
    return path


def test_no_file_is_no_webhooks() -> None:
    assert load_webhooks(None).endpoints == ()


def test_a_file_with_both_kinds(tmp_path: Path, secret: Path) -> None:
    path = written(
        tmp_path,
        f"""
endpoints:
  - {{name: crm, tenant: acme, url: "https://hooks.example.com/q", secret_file: {secret}}}
before_send:
  - {{tenant: acme, url: "http://127.0.0.1:9/x", secret_file: {secret}, on_failure: refuse}}
""",
    )
    found = load_webhooks(path)
    endpoint = found.endpoint("crm")
    assert endpoint.secret.get_secret_value() == SECRET
    assert endpoint.events == ("message.committed",)
    assert found.before_send[0].deadline_ms == 300
    assert SECRET not in repr(found) + found.model_dump_json()
    with pytest.raises(ConfigError, match="webhook 'other' is not in the file of webhooks; there are: crm"):
        found.endpoint("other")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("url: 'ftp://x/'", "endpoints.0: url: 'ftp://x/' is not an http"),
        ("url: 'http://example.com/'", "plain http beyond this machine"),
        ("url: 'https://user:pw@example.com/'", "holds credentials"),
        ("tenant: 'a b'", "endpoints.0.tenant: is not an id"),
        ("name: Crm", "endpoints.0.name"),
        ("events: [message.deleted]", "endpoints.0.events.0"),
        ("batch_max: 0", "endpoints.0.batch_max"),
        ("secret: abc", "name a file"),
        ("secret_file: /nowhere/at/all", "FileNotFoundError"),
        ("colour: red", "endpoints.0.colour: Extra inputs"),
    ],
)
def test_a_mistake_is_named(change: str, why: str, tmp_path: Path, secret: Path) -> None:
    fields = {
        "name": "name: crm",
        "tenant": "tenant: acme",
        "url": "url: 'https://example.com/'",
        "secret_file": f"secret_file: {secret}",
    }
    fields[change.split(":", maxsplit=1)[0]] = change
    path = written(tmp_path, "endpoints:\n  - " + "\n    ".join(fields.values()) + "\n")
    with pytest.raises(ConfigError, match=r"webhooks_file: .*webhooks\.yaml") as failure:
        load_webhooks(path)
    assert why in str(failure.value)
    assert SECRET not in str(failure.value)


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abc")
    path = written(tmp_path, f"endpoints: [{{name: a, tenant: t, url: 'https://e/', secret_file: {short}}}]")
    with pytest.raises(ConfigError, match="secret_file: has 3 characters, needs 32"):
        load_webhooks(path)


def test_a_name_stands_there_once(tmp_path: Path, secret: Path) -> None:
    entry = f"{{name: a, tenant: t, url: 'https://e/', secret_file: {secret}}}"
    with pytest.raises(ConfigError, match="endpoints: a stands there twice"):
        load_webhooks(written(tmp_path, f"endpoints: [{entry}, {entry}]"))


@pytest.mark.parametrize("text", ["endpoints: [", "- 1", "endpoints: 5", "\x00"])
def test_what_is_no_such_file_is_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="webhooks_file"):
        load_webhooks(written(tmp_path, text))
