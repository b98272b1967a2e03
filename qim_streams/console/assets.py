"""The console's files, read once from the package: what is not in this table does not exist.

No path of a request is joined to a directory, so no trick with dots, slashes or encodings leads anywhere.

Invariants: every page carries a policy that allows scripts and styles from files of ours only, no script made
from text, no frame, no form target; only the chat page may connect to gateways, to those named.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGES: Final = {"": "index.html", "chat": "chat.html"}
_ORIGIN = re.compile(r"wss?://[A-Za-z0-9.\-\[\]:_]{1,255}")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file. `etag` changes with its content."""

    content: bytes
    media_type: str
    etag: str

    @property
    def is_page(self) -> bool:
        """Whether it is a document of its own."""
        return self.media_type.startswith("text/html")


def load_assets() -> Mapping[str, Asset]:
    """Every file below ``static/``, by its path with slashes; pages by their short names, too."""
    found: dict[str, Asset] = {}
    _collect(resources.files("qim_streams.console").joinpath("static"), "", found)
    return found | {name: found[path] for name, path in PAGES.items()}


def _collect(directory: Traversable, prefix: str, found: dict[str, Asset]) -> None:
    for entry in directory.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            _collect(entry, path + "/", found)
            continue
        media_type = MEDIA_TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            content = entry.read_bytes()
            found[path] = Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def headers(asset: Asset, gateways: Sequence[str] = ()) -> dict[str, str]:
    """The headers of an answer; `gateways`: origins (``ws://host:port``) that the page may connect to.

    What does not look like an origin is left out: it would be a policy of its own.
    """
    origins = [one for one in gateways if _ORIGIN.fullmatch(one)]
    return {
        "Content-Security-Policy": _POLICY.format(connect=" ".join(["'self'", *origins])),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-cache",
        "ETag": asset.etag,
    }
