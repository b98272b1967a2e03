"""The reference of the Python API, made from docstrings: ``make docs``.

Two forms: ``docs/reference.md``, an index of the client SDK that lies in the repository, and HTML of all that
is in `SECTIONS`, which pdoc (extra ``docs``) renders into ``build/reference``. A warning of pdoc, such as an
annotation that names nothing, is an error.

What belongs to it is what others build on: the SDK, the ports that adapters are written against, and the
vocabulary of both. Everything else is read in the code, where it is documented just so.
"""

import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "reference.md"
PAGES = ROOT / "build" / "reference"
CLIENT = "qim_streams.client"
SECTIONS = {
    "The client SDK": (
        CLIENT,
        *(
            f"{CLIENT}.{name}"
            for name in (
                "client",
                "options",
                "deliveries",
                "conversations",
                "groups",
                "history",
                "presence",
                "push",
                "rooms",
                "sessions",
                "store",
                "sqlite_store",
            )
        ),
    ),
    "Ports: what an adapter, a stage or a provider is written against": (
        "qim_streams.log_ports",
        "qim_streams.archive.ports",
        "qim_streams.commit.ports",
        "qim_streams.gateway.ports",
        "qim_streams.history.ports",
        "qim_streams.mailbox.ports",
        "qim_streams.membership.ports",
        "qim_streams.notification.ports",
        "qim_streams.ownership.ports",
        "qim_streams.push.ports",
        "qim_streams.rooms.ports",
        "qim_streams.sessions.ports",
        "qim_streams.spans.ports",
        "qim_streams.sync.ports",
        "qim_streams.webhooks.ports",
    ),
    "Vocabulary": (
        "qim_streams.errors",
        "qim_streams.ids",
        "qim_streams.placement",
        "qim_streams.records",
        "qim_streams.wire.codes",
        "qim_streams.wire.frames",
    ),
}
# What a `QimClient` is asked for by name: module of the SDK -> attribute.
PARTS = {
    "groups": "groups",
    "history": "history",
    "presence": "presence",
    "push": "push",
    "rooms": "rooms",
    "sessions": "sessions",
}
_INTRO = """\
# Reference of the client SDK

Made by `make docs` from the docstrings of `qim_streams/client/`. Not to be edited. The guide: `docs/sdk.md`.

The same command writes signatures, arguments and errors of all of this, of the ports that adapters are
written against, and of records and frames, as HTML: open `index.html` in `build/reference`, which is not
kept in git.
"""


class Member(NamedTuple):
    """A public name: `call` is how it is written, `text` its docstring."""

    call: str
    text: str


def main() -> int:
    """Write both forms."""
    INDEX.write_text(index(), encoding="utf-8")
    try:
        pages = render(PAGES)
    except ImportError:
        print("pdoc is missing: pip install -c constraints.txt 'qim-streams[docs]'", file=sys.stderr)
        return 1
    print(f"{INDEX.relative_to(ROOT)}; {PAGES.relative_to(ROOT)}/index.html and {pages} modules")
    return 0


def modules() -> list[str]:
    """All modules of the reference."""
    return [name for names in SECTIONS.values() for name in names]


def render(directory: Path) -> int:
    """Render all modules as HTML; how many. ImportError without pdoc; a warning of it is raised."""
    import pdoc

    pdoc.render.configure(docformat="restructuredtext", footer_text="Q-IM streams", show_source=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # pdoc's own; drivers may warn of what they like
        # A package brings its modules along: those that are not named here are left out.
        pdoc.pdoc(*modules(), *(f"!{name}$" for name in _unnamed()), output_directory=directory)
    return len(modules())


def _unnamed() -> Iterator[str]:
    for path in (ROOT / "qim_streams" / "client").glob("*.py"):
        name = f"{CLIENT}.{path.stem}"
        if path.stem != "__init__" and name not in modules():
            yield name.replace(".", r"\.")


# -- the index


def index() -> str:
    """The text of ``docs/reference.md``."""
    client = importlib.import_module(CLIENT)
    parts = [_INTRO, f"## What `{CLIENT}` offers\n"]
    parts += [_entry(name, getattr(client, name)) for name in sorted(client.__all__)]
    for module, attribute in PARTS.items():
        parts.append(f"## `client.{attribute}`\n")
        parts += [_entry(name, thing) for name, thing in public_classes(f"{CLIENT}.{module}")]
    return "\n".join(parts)


def public_classes(module: str) -> Iterator[tuple[str, type]]:
    """The classes that a module defines for others, as they stand in it."""
    for name, thing in vars(importlib.import_module(module)).items():
        if inspect.isclass(thing) and thing.__module__ == module and not name.startswith("_"):
            yield name, thing


def _entry(name: str, thing: Any) -> str:
    rows = [f"| `{one.call}` | {summary(one.text)} |" for one in members(thing)]
    table = ["", "| | |", "|---|---|", *rows] if rows else []
    return "\n".join([f"### {name}", "", _about(thing), *table]) + "\n"


def _about(thing: Any) -> str:
    if isinstance(thing, types.UnionType):
        return "One of " + ", ".join(f"`{one.__name__}`" for one in thing.__args__) + "."
    return summary(inspect.getdoc(thing) or "")


def members(thing: Any) -> Iterator[Member]:
    """The public methods and properties of a class, in the order in which they are written."""
    if not inspect.isclass(thing):
        return
    for name, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        arguments = [one for one in inspect.signature(function).parameters if one not in ("self", "cls")]
        call = name if isinstance(value, property) else f"{name}({', '.join(arguments)})"
        yield Member(call, inspect.getdoc(function) or "")


def summary(text: str) -> str:
    """The first paragraph of a docstring in one line, fit for a table."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("|", r"\|")


if __name__ == "__main__":
    sys.exit(main())
