"""The pages against the tree: paths, settings, commands, topics, keys and frames that they name exist.

Each rule is a small function over a text, and each has a test that it catches an offender. What is right
but badly said, no test finds.
"""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from qim_streams.cli import main
from qim_streams.commit import keys
from qim_streams.console import redis_letters
from qim_streams.gateway import redis_devices
from qim_streams.mailbox import redis_store, redis_trim
from qim_streams.membership import redis_directory
from qim_streams.notification import redis_devices as push_devices
from qim_streams.notification import redis_queue
from qim_streams.ownership import ports as lease_ports
from qim_streams.quotas import redis_quotas
from qim_streams.rooms import redis_store as room_store
from qim_streams.sessions import keys as session_keys
from qim_streams.sessions import redis_projection
from qim_streams.settings import OTHER_VARIABLES, Settings
from qim_streams.streaming import topics
from qim_streams.streaming.doubt import EXIT_CONFIG, EXIT_DOUBT
from qim_streams.sync import redis_boundaries
from qim_streams.wire.frames import CLIENT_FRAMES, SERVER_FRAMES, Event, Message
from qim_streams.wire.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("agents", "docker", "docs", "qim_streams", "tables", "tests", ".ci")
SUFFIXES = (".py", ".lua", ".md", ".yaml", ".toml", ".csv", ".sh", ".txt")
# Written by a run and kept; until then only the module that writes it knows it.
WRITTEN_LATER = {"tests/report.md": "tests/support/report.py"}
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md"))
    if path.relative_to(ROOT).as_posix() not in WRITTEN_LATER
)
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")


def spans(text: str) -> list[str]:
    """What stands between single backquotes."""
    return _SPAN.findall(_FENCE.sub("", text))


def fenced_lines(text: str) -> list[str]:
    """The lines of fenced blocks."""
    return [line for block in _FENCE.findall(text) for line in block.splitlines()[1:-1]]


# -- paths


@cache
def tree() -> frozenset[str]:
    """Every file and directory of the project, with slashes, from the root."""
    found = {path.name for path in ROOT.iterdir()}
    for part in PARTS:
        paths = (path for path in (ROOT / part).rglob("*") if "__pycache__" not in path.parts)
        found |= {path.relative_to(ROOT).as_posix() for path in paths}
    return frozenset(found)


_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")  # with a placeholder it is a form, not a path


def missing_paths(text: str, page: str = "README.md") -> list[str]:
    """Paths in `text` that lead nowhere; a path may start at the root, in the package, tests or its page.

    ``path::name`` needs the name in the file. A bare file name may be anywhere.
    """
    wrong = []
    for span in spans(text):
        path, _, name = span.partition("::")
        is_path = _PATH.fullmatch(path) and ("/" in path or path.endswith(SUFFIXES))
        if not is_path or path.startswith((".venv/", ".qim/", "build/")):
            continue
        found = _resolved(path.rstrip("/"), page)
        if not found or (name and not any(_mentions(one, name) for one in found)):
            wrong.append(span)
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    return wrong + [target for target in targets if not _resolved(target, page)]


def _resolved(path: str, page: str) -> list[str]:
    if path in WRITTEN_LATER:
        return [WRITTEN_LATER[path]] if path in (ROOT / WRITTEN_LATER[path]).read_text() else []
    homes = ["", "qim_streams/", "tests/", page.rpartition("/")[0] + "/"]
    if "/" not in path:
        homes.append("*/")
    return [one for one in tree() for home in homes if fnmatchcase(one, home + path)]


def _mentions(path: str, name: str) -> bool:
    return bool(re.search(rf"\b{re.escape(name)}\b", (ROOT / path).read_text(encoding="utf-8")))


@EACH_PAGE
def test_every_path_exists(page: Path) -> None:
    assert not missing_paths(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())


def test_a_path_that_leads_nowhere_is_caught() -> None:
    good = "`qim_streams/commit/lane.py` `commit/lane.py` `docs/` `redis_*.py` `fence.lua` [a](LICENSE)"
    assert missing_paths(good) == []
    assert missing_paths("`commit/line.py` `fence.luax` `fance.lua`") == ["commit/line.py", "fance.lua"]
    assert missing_paths("[a](docs/nowhere.md) [b](https://example.org/x.md)") == ["docs/nowhere.md"]
    here = "tests/unit/test_docs.py"
    lost = f"{here}::missing_" + "roads"
    assert missing_paths(f"`{here}::missing_paths` `{lost}`") == [lost]


# -- settings and other names of the code


def unknown_settings(text: str) -> list[str]:
    """QIM_* names in `text` that nothing reads."""
    known = {f"QIM_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    named = set(re.findall(r"\bQIM_[A-Z0-9_]*[A-Z0-9]\b", text))
    return sorted(name for name in named - known if not name.startswith("QIM_TEST_"))


@EACH_PAGE
def test_every_setting_exists(page: Path) -> None:
    assert not unknown_settings(page.read_text(encoding="utf-8"))


def test_a_setting_that_nothing_reads_is_caught() -> None:
    assert unknown_settings("`QIM_*` QIM_REDIS_URL, QIM_FAILPOINT and QIM_REDIS_URI") == ["QIM_REDIS_URI"]


@cache
def words_of_the_code() -> frozenset[str]:
    """Every word of the product's sources and of the topics."""
    paths = [path for part in ("qim_streams", "agents", "tables") for path in (ROOT / part).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".lua")]
    return frozenset(re.findall(r"\w+", "\n".join([*texts, (ROOT / "topics.yaml").read_text()])))


def unknown_names(text: str) -> list[str]:
    """Names with underscores, alone between backquotes, that the code does not know."""
    named = {span for span in spans(text) if re.fullmatch(r"_?[a-z]+(_[a-z0-9]+)+", span)}
    return sorted(named - words_of_the_code())


# Names of others, and metrics: tests/unit/test_monitoring.py knows those that exist.
_FOREIGN = re.compile(r"used_memory|qim_[a-z]+(_[a-z]+)+")


@EACH_PAGE
def test_every_name_is_one_of_the_code(page: Path) -> None:
    named = unknown_names(page.read_text(encoding="utf-8"))
    assert not [name for name in named if not _FOREIGN.fullmatch(name)]


def test_exit_codes_are_told_as_they_are() -> None:
    """What an operator sees of a role that ended."""
    page = (ROOT / "docs" / "runbooks" / "QimRoleDown.md").read_text(encoding="utf-8")
    assert f"exit code {EXIT_DOUBT} means that it stopped on doubt" in page
    assert f", {EXIT_CONFIG} that its configuration is wrong" in page


def test_a_name_that_the_code_lost_is_caught() -> None:
    assert unknown_names("`lease_ttl_ms` and `lease_ttl_seconds`") == ["lease_ttl_seconds"]


@EACH_PAGE
def test_every_topic_is_declared(page: Path) -> None:
    named = set(re.findall(r"\bqim\.[a-z-]+\.v\d+\b", page.read_text(encoding="utf-8")))
    assert named <= set(topics.load().topics)


# -- commands


def commands(text: str) -> Iterator[list[str]]:
    """Command lines in `text`: words of spans and of fenced lines, without comments."""
    for line in (*spans(text), *fenced_lines(text)):
        if re.match(r"(\.venv/bin/|\$ )?(qim|make|python -m|faust -A) ", line):
            yield shlex.split(line.removeprefix("$ ").removeprefix(".venv/bin/"), comments=True)


def wrong_command(words: list[str]) -> str | None:
    """What is wrong with a command line, None when there is such a command with such options."""
    match words:
        case ["make", target, *_]:
            found = re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return None if found or target.startswith("PYTHON=") else f"make {target}"
        case ["python", "-m", module, *_]:
            return None if find_spec(module) else module
        case ["faust", "-A", module, *_]:
            return None if find_spec(module) else module
        case ["qim", *rest]:
            return _wrong_option(main, rest)
    return " ".join(words)


def _wrong_option(command: click.Command, words: list[str]) -> str | None:
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(click.Context(command), words[0])
        return f"{command.name} {words[0]}" if inner is None else _wrong_option(inner, words[1:])
    context = click.Context(command)
    options = {option for one in command.get_params(context) for option in (*one.opts, *one.secondary_opts)}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return f"{command.name}: {', '.join(sorted(used - options))}" if used - options else None


@EACH_PAGE
def test_every_command_exists_with_its_options(page: Path) -> None:
    told = list(commands(page.read_text(encoding="utf-8")))
    assert not [wrong for words in told if (wrong := wrong_command(words))]
    if page.name == "README.md" and page.parent == ROOT:
        assert len(told) > 10  # the reader of commands reads


def test_a_command_that_does_not_exist_is_caught() -> None:
    text = "`qim send --user a --too b hi` `qim sent x` `make demos` `qim group creates` `python -m tests.x`"
    assert [wrong_command(words) for words in commands(text)] == [
        "send: --too",
        "main sent",
        "make demos",
        "group creates",
        "tests.x",
    ]
    assert [wrong_command(words) for words in commands("`qim group create --user a --name t`")] == [None]
    assert [wrong_command(words) for words in commands("```\n.venv/bin/qim config  # all\n```")] == [None]


@EACH_PAGE
def test_every_import_of_an_example_works(page: Path) -> None:
    for block in re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        tree_of = ast.parse("async def example():\n" + re.sub("^", " ", block, flags=re.MULTILINE))
        for node in ast.walk(tree_of):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert all(hasattr(importlib.import_module(node.module), one.name) for one in node.names)


# -- Redis keys: the page's table and the key tables of the modules


def keys_in(text: str) -> set[str]:
    """Keys in `text`, their placeholders as they are."""
    return set(re.findall(r"\{[a-z]+:[\w<>:]+\}:[\w<>:]+", text))


def section(text: str, title: str) -> str:
    """The text of a section of a page."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines[2:]]


def test_the_table_of_keys_is_that_of_the_code() -> None:
    """Of all keys: those of leases are made from the lease's name, the others are listed by their module."""
    told = {key for row in rows(section(ARCHITECTURE.read_text(), "Redis keys")) for key in keys_in(row[0])}
    names: list[str] = re.findall(r"``(\w+):<", lease_ports.LeaseStore.__doc__ or "")
    tags = {
        name: next(key.partition("}")[0] for key in told if key.startswith(f"{{{name}:")) for name in names
    }
    expected = {f"{tag}}}:{what}" for tag in tags.values() for what in ("epoch", "lease", "run")}
    for module in (
        keys,
        redis_store,
        redis_trim,
        redis_devices,
        push_devices,
        redis_queue,
        redis_boundaries,
        session_keys,
        room_store,
        redis_projection,
        redis_quotas,
        redis_letters,
    ):
        expected |= keys_in(module.__doc__ or "")
    expected |= {f"{{o:<tenant>:<lane>}}:{what}" for what in ("ids", "names", "next", "run")}
    assert "{o:<tenant>:<lane>}:ids" in (redis_directory.__doc__ or "")
    expected.discard("{s:<shard>}:epoch")  # a reader of the lease store's key names it with a word
    assert told == expected


def test_the_fields_of_a_head_are_those_of_the_code() -> None:
    (row,) = [row for row in rows(section(ARCHITECTURE.read_text(), "Redis keys")) if "{ob:p}:c:" in row[0]]
    told = max(spans(row[2]), key=len).split()
    of_code = re.search(r"Head fields: ``([\w\s]+)``", keys.__doc__ or "")
    assert of_code is not None
    assert told == of_code[1].split()


# -- frames


def fields_told(cell: str) -> list[str]:
    """Field names of a cell: what is in brackets or behind a colon or semicolon is explanation."""
    cell = re.sub(r"\([^()]*\)", "", cell)
    cell = re.split(r"[:;]", cell)[0]
    return [name.strip().removesuffix("[]") for name in cell.split(",")]


def test_the_table_of_frames_is_that_of_the_code() -> None:
    told: dict[str, tuple[str, set[str]]] = {}
    for names, sender, fields in rows(section(ARCHITECTURE.read_text(), "Frames")):
        told |= dict.fromkeys(names.split(", "), (sender, set(fields_told(fields))))
    assert told.keys() == CLIENT_FRAMES.keys() | SERVER_FRAMES.keys()
    for name, (sender, fields_named) in told.items():
        senders = [
            who for who, table in (("client", CLIENT_FRAMES), ("server", SERVER_FRAMES)) if name in table
        ]
        assert sender == ("both" if len(senders) == 2 else senders[0]), name
        schema = (CLIENT_FRAMES | SERVER_FRAMES)[name]
        assert fields_named == {field.name for field in schema.fields}, name


def test_the_form_of_an_event_is_that_of_the_code() -> None:
    match = re.search(r"the same form: `([^`{]+)\{([^}]+)\}`", section(ARCHITECTURE.read_text(), "Frames"))
    assert match is not None
    assert set(fields_told(match[1])) == {field.name for field in Schema(Event).fields}
    assert set(fields_told(match[2])) == {field.name for field in Schema(Message).fields}


# -- decisions


def test_decisions_are_numbered_without_a_gap_and_complete() -> None:
    assert [path.name[:5] for path in DECISIONS] == [f"{n:04}-" for n in range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert re.match(rf"# {path.name[:4]}:? \S", text), path.name
        for part in ("Context", "Decision", "Consequences"):
            assert re.search(rf"^(## {part}$|\*\*{part}\.\*\*)", text, re.MULTILINE), (path.name, part)
        assert len(text.split()) <= 800, f"{path.name}: more than a page"
