"""The settings of OpenTelemetry traces: a part of `settings.Settings`, in a file of their own.

One switch: `tracing_endpoint`. Where it is empty, and by default it is, no stage does anything for traces and
nothing that makes or sends spans is imported. All roles need the same ratio: each decides for itself which
messages are sampled, by the same rule from the message_id.

Spec: §1.
"""

from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

HEADERS_FILE_BYTES_MAX: Final = 8_192


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra={"section": "tracing"}, **bounds)


class TracingSettings(BaseSettings):
    """Fields of `Settings`; not used by itself."""

    tracing_endpoint: str = _setting(
        "", "OTLP/HTTP address that spans go to, http://host:4318/v1/traces; empty = no traces"
    )
    tracing_ratio: float = _setting(
        0.001, "share of messages that are traced, the same for all roles", ge=0, le=1
    )
    tracing_headers_file: Path | None = _setting(
        None, "file of headers for that address, one 'name: value' a line (a collector's key)"
    )
    tracing_tls_ca_file: Path | None = _setting(
        None, "PEM file of the authorities that it is checked against; unset = the system's"
    )

    @model_validator(mode="after")
    def _endpoint_is_an_address(self) -> Self:
        if self.tracing_endpoint and not self.tracing_endpoint.startswith(("http://", "https://")):
            raise ValueError("tracing_endpoint: must begin with http:// or https://, path included")
        return self

    def tracing_headers(self) -> dict[str, str]:
        """The headers of `tracing_headers_file`; ValueError names the file and the line that is none."""
        if self.tracing_headers_file is None:
            return {}
        return read_headers(self.tracing_headers_file)


def read_headers(path: Path) -> dict[str, str]:
    """Headers of a file, one ``name: value`` a line; ValueError names what is wrong, never a value."""
    try:
        with path.open("rb") as file:
            text = file.read(HEADERS_FILE_BYTES_MAX + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"tracing_headers_file: {path}: {type(error).__name__}; give a readable text file"
        ) from None
    if len(text) > HEADERS_FILE_BYTES_MAX:
        raise ValueError(f"tracing_headers_file: {path}: over {HEADERS_FILE_BYTES_MAX} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip() or " " in name.strip():
            raise ValueError(f"tracing_headers_file: {path}: line {number} is not 'name: value'")
        found[name.strip()] = value.strip()
    return found
