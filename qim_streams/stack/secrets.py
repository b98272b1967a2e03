"""The secrets of a local stack: made once per state directory, kept in a file of mode 0600.

They are random, never printed and never on a command line. A secret that the environment gives wins, itself
(QIM_JWT_SECRET) or as the name of a file (QIM_JWT_SECRET_FILE).
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from qim_streams.errors import ConfigError
from qim_streams.settings import read_secret

NAMES = ("internal_secret", "jwt_secret", "cursor_secret", "admin_api_key")
FILE_NAME = "secrets.json"


def load_or_make(state_dir: Path, draw: Callable[[], str], environ: Mapping[str, str]) -> dict[str, str]:
    """The secret of each of `NAMES`; `draw` makes a new one. ConfigError for an unreadable file."""
    path = state_dir / FILE_NAME
    kept = _read(path)
    made = {name: kept.get(name) or draw() for name in NAMES}
    if made != kept:
        _write(path, made)
    return {name: _given(name, environ) or value for name, value in made.items()}


def _given(name: str, environ: Mapping[str, str]) -> str:
    """The secret that the environment gives, itself or as the name of a file; else nothing."""
    variable = f"QIM_{name.upper()}"
    given, path = environ.get(variable, ""), environ.get(f"{variable}_FILE", "")
    if given and path:
        raise ConfigError(f"{variable}: is set beside {variable}_FILE; unset one of them")
    try:
        return read_secret(name, Path(path)) if path else given
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        return {name: str(content[name]) for name in NAMES if name in content}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a file of secrets ({error}); delete it to make new ones") from error


def _write(path: Path, secrets: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(secrets, file)
    draft.replace(path)
