"""The servers that an operator's command looks into: those of the settings, or of a stack that runs here.

A variable that is set wins; what is not set is taken from the ``client.json`` of a running local stack;
how many partitions there are is asked of the log itself, which cannot be wrong about it.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from qim_streams.client.discovery import CLIENT_FILE, FILE_BYTES_MAX, STATE_DIRS
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings, load_settings
from qim_streams.trace.ports import LogReader
from qim_streams.trace.service import DISPATCH, OUTBOX, PUSH

SECRETS_FILE = "secrets.json"  # of `stack.secrets`
_COUNTS = {"outbox_partitions": OUTBOX, "mailbox_shards": DISPATCH, "connection_shards": PUSH}


def server_settings(state_dir: Path | None) -> tuple[Settings, str]:
    """Settings that lead to the servers, and the tenant of the local stack ("" for none).

    ConfigError when `state_dir` is given and no stack runs there.
    """
    settings = load_settings()
    for directory in (state_dir,) if state_dir is not None else STATE_DIRS:
        path = directory / CLIENT_FILE
        if path.exists():
            found = _read(path)
            known = {
                "brokers": found.get("brokers"),
                "redis_url": found.get("redis_url"),
                "archive_rocksdb_dir": directory / "archive",
                "archive": found.get("archive"),
                "cassandra_hosts": found.get("cassandra_hosts"),
                "cassandra_port": found.get("cassandra_port"),
                "outbox_partitions": found.get("outbox_partitions"),
                "mailbox_shards": found.get("mailbox_shards"),
                "mailbox_shards_max": found.get("mailbox_shards_max"),
            }
            unset = {
                name: value
                for name, value in known.items()
                if value and name not in settings.model_fields_set
            }
            return load_settings(**unset), str(found.get("tenant", ""))
    if state_dir is not None:
        raise ConfigError(f"no stack runs in {state_dir}: start one with `qim up --state-dir {state_dir}`")
    return settings, ""


def operator_settings(state_dir: Path | None) -> Settings:
    """As `server_settings`, with the operator's user of a local stack's Redis, who may do more than roles."""
    settings, _ = server_settings(state_dir)
    for directory in (state_dir,) if state_dir is not None else STATE_DIRS:
        path = directory / CLIENT_FILE
        if path.exists():
            url = _read(path).get("redis_admin_url")
            return settings if not url else settings.model_copy(update={"redis_url": SecretStr(str(url))})
    return settings


def with_secrets(settings: Settings, tenant: str, state_dir: Path | None) -> tuple[Settings, str]:
    """`server_settings` with the internal secret of a local stack, for commands that reach its writers."""
    for directory in (state_dir,) if state_dir is not None else STATE_DIRS:
        if (directory / CLIENT_FILE).exists() and (directory / SECRETS_FILE).exists():
            secret = SecretStr(str(_read(directory / SECRETS_FILE).get("internal_secret", "")))
            if not settings.internal_secret.get_secret_value():
                return settings.model_copy(update={"internal_secret": secret}), tenant
    return settings, tenant


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()[:FILE_BYTES_MAX])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); start the stack again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not a JSON object; start the stack again")
    return content


async def with_partition_counts(settings: Settings, log: LogReader) -> Settings:
    """The settings with the partition counts that the log has; ConfigError when it has no topics."""
    counts = {name: await log.partitions(topic) for name, topic in _COUNTS.items()}
    missing = [topic for name, topic in _COUNTS.items() if not counts[name]]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not on {settings.brokers}: run `qim topics apply`")
    shards = counts["mailbox_shards"]
    if settings.mailbox_shards_max and settings.mailbox_shards <= shards:
        counts["mailbox_shards"] = settings.mailbox_shards  # the log has room for splits
    return settings.model_copy(update=counts | {"mailbox_shards_max": shards})
