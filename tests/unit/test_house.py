"""The house rules, held against the tree: layers, names, sizes, docstrings, errors, failpoints, topics.

Each rule is a small function over the sources, and each has a test that it catches an offender.
"""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

import qim_streams
from qim_streams import failpoints
from qim_streams.errors import POLICY, QimError
from qim_streams.streaming import topics

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("qim_streams", "agents", "tables")
FILE_LINES_MAX, FUNCTION_LINES_MAX = 400, 70


@dataclass(frozen=True)
class Source:
    """A module's text and tree."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Path from the root, with slashes."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """Dotted name."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def tree(self) -> ast.Module:
        """The syntax tree, shared: not to be changed."""
        return _parsed(self.text)


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def sources() -> list[Source]:
    """Every module of the product."""
    return [
        Source(path, path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def fake(text: str, name: str = "qim_streams/stage/made_up.py") -> Source:
    """A module that is not in the tree."""
    return Source(ROOT / name, text)


def imported(source: Source) -> set[str]:
    """The modules that a module imports, those for type checking included."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


# -- layers


def test_the_import_contracts_hold() -> None:
    """`lint-imports`, as `make lint` runs it."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


# A driver may be imported by these modules only (prefixes). An adapter is a module that names its driver.
DRIVER_HOMES = {
    "redis": (
        "qim_streams.redis_tier",
        "*.redis_*",
        "qim_streams.commit.calls",
        "qim_streams.script_pipe",
        "qim_streams.command_pipe",
    ),
    "confluent_kafka": ("qim_streams.streaming", "*.kafka_*", "qim_streams.embedded.kafka"),
    "aiokafka": ("qim_streams.streaming", "*.kafka_*", "qim_streams.push.presence_follower"),
    "faust": ("qim_streams.streaming", "qim_streams.roles", "tables", "agents"),
    "mode": ("qim_streams.streaming",),
    "rocksdict": ("qim_streams.streaming", "qim_streams.archive.rocksdb_*", "*.rocksdb_*"),
    "fastapi": ("qim_streams.api", "qim_streams.roles.api"),
    "uvicorn": ("qim_streams.api", "qim_streams.roles.api"),
    "cassandra": ("*.cassandra_*",),
    "opentelemetry": ("*.otlp_*",),
    "sqlite3": ("*.sqlite*", "*.local_store", "qim_streams.client"),
}


def strays(source: Source) -> list[str]:
    """The drivers that a module imports though it is no adapter of theirs."""
    return [
        driver
        for driver in {name.split(".")[0] for name in imported(source)} & set(DRIVER_HOMES)
        if not any(_matches(source.module, home) for home in DRIVER_HOMES[driver])
    ]


def _matches(module: str, home: str) -> bool:
    return fnmatchcase(module, home) or fnmatchcase(module, f"{home}.*")


def test_drivers_stay_in_their_adapters() -> None:
    offenders = {source.name: strays(source) for source in sources() if strays(source)}
    assert not offenders


def test_a_stray_driver_is_caught() -> None:
    assert strays(fake("import redis.asyncio\n")) == ["redis"]
    assert strays(fake("import redis\n", "qim_streams/commit/redis_store.py")) == []
    assert strays(fake("from rocksdict import Rdict\n", "qim_streams/archive/service.py")) == ["rocksdict"]


# What agents may know: their transport, their composition, their tables, and the vocabulary.
AGENT_IMPORTS = (
    "qim_streams.streaming", "qim_streams.roles", "qim_streams.settings", "qim_streams.errors",
    "qim_streams.ids", "qim_streams.records", "tables", "agents", "faust", "typing", "collections",
)  # fmt: skip


@pytest.mark.parametrize(
    "source", [s for s in sources() if s.name.startswith("agents/")], ids=lambda s: s.name
)
def test_agents_are_thin(source: Source) -> None:
    foreign = [name for name in imported(source) if not name.startswith(AGENT_IMPORTS)]
    assert not foreign
    branches = [node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.If | ast.Match)]
    assert not branches, f"business decisions at lines {branches} belong into a service"


# -- purity: time, randomness and ids come in as arguments

IMPURE = re.compile(
    r"\b(time\.(time|time_ns|monotonic|sleep)|datetime\.now|random\.\w+\(|secrets\.\w+\(|os\.environ|"
    r"asyncio\.|await |async def |open\()"
)
PURE = ("ids", "hlc", "placement", "records", "codec", "limits")


def is_pure_by_name(source: Source) -> bool:
    """Whether the name promises purity: the vocabulary and every ``rules`` module."""
    return source.name.endswith("/rules.py") or source.module in {f"qim_streams.{name}" for name in PURE}


def impurities(source: Source) -> list[str]:
    """Lines of code that reach for time, chance, files or the event loop (strings and comments aside)."""
    code = ast.unparse(_without_docstrings(ast.parse(source.text)))
    return [line.strip() for line in code.splitlines() if IMPURE.search(line)]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return tree


@pytest.mark.parametrize("source", [s for s in sources() if is_pure_by_name(s)], ids=lambda s: s.name)
def test_pure_modules_are_pure(source: Source) -> None:
    assert not impurities(source)


def test_an_impure_rule_is_caught() -> None:
    assert impurities(fake('"""time.time() in words is fine."""\nimport time\nnow = time.time()\n'))


# -- names, sizes, docstrings

ROOMS = re.compile(r"(^|/)(utils?|helpers?|common|misc|manager)(\.py|/)")


def test_no_room_without_a_noun() -> None:
    assert not [source.name for source in sources() if ROOMS.search(source.name)]
    assert ROOMS.search("qim_streams/utils.py")


def test_every_stage_settles_before_it_reads() -> None:
    """The archiver did not once, and a fifth of its CPU went into collections that found nothing."""
    stages = [
        one for one in sources() if one.name.startswith("qim_streams/roles/") and "build_app(" in one.text
    ]
    assert len(stages) >= 5
    assert [one.name for one in stages if "settle_stage(" not in one.text] == []


def test_files_fit_on_a_few_screens() -> None:
    long = {source.name: len(source.text.splitlines()) for source in sources()}
    assert not {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX}


def long_functions(source: Source) -> list[str]:
    """Functions over the limit, with their length."""
    return [
        f"{source.name}:{node.lineno} {node.name} {size}"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_functions_fit_on_a_screen() -> None:
    assert not [line for source in sources() for line in long_functions(source)]
    assert long_functions(fake("def f():\n" + "    x = 1\n" * 71))


def undocumented(source: Source) -> list[str]:
    """Public names without a docstring: the module, classes, functions, methods of public classes.

    Members of protocols that are mere attributes (a body of ``...``) say what they are by their name.
    """
    missing = [] if ast.get_docstring(source.tree) or not source.text.strip() else [source.name]
    missing += _undocumented_in(source.tree.body, source.name)
    return missing


def _undocumented_in(body: list[ast.stmt], where: str) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        here = f"{where}:{node.lineno} {node.name}"
        attribute = isinstance(node, ast.FunctionDef) and _is_ellipsis(node.body)
        if not ast.get_docstring(node) and not attribute and not _is_overload(node):
            yield here
        if isinstance(node, ast.ClassDef):
            yield from _undocumented_in(node.body, where)


def _is_ellipsis(body: list[ast.stmt]) -> bool:
    (*_, last) = body
    return (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is Ellipsis
    )


def _is_overload(node: ast.AST) -> bool:
    return any("overload" in ast.unparse(one) for one in getattr(node, "decorator_list", []))


def test_every_public_name_is_documented() -> None:
    assert not [line for source in sources() for line in undocumented(source)]
    assert undocumented(fake("class A:\n    def b(self):\n        return 1\n"))


MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BLANKET = re.compile(r"#\s*(noqa(?!:)|type: ignore(?!\[))")


@pytest.mark.parametrize("pattern", [MARKS, BLANKET], ids=["marks", "blanket ignores"])
def test_nothing_is_left_for_later(pattern: re.Pattern[str]) -> None:
    found = [
        f"{source.name}:{number} {line.strip()}"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_no_exception_is_swallowed_in_silence() -> None:
    """A handler that only passes says why in a comment."""
    silent = []
    for source in sources():
        lines = source.text.splitlines()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(one, ast.Pass) for one in node.body):
                part = lines[node.lineno - 2 : node.end_lineno]
                if not any("#" in line for line in part):
                    silent.append(f"{source.name}:{node.lineno}")
    assert not silent


TEXTS = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".lua", ".js", ".html", ".css", "")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:work|home|root|Users|private)/[\w.]")


def test_no_path_of_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = [
        f"{name}:{number}"
        for name in tracked
        if Path(name).suffix in TEXTS and (ROOT / name).is_file() and ROOT / name != Path(__file__)
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert not found
    assert MACHINE_PATHS.search("cd /home/me/x")


# -- errors


def all_errors() -> set[type[QimError]]:
    """Every class of the error tree, wherever it is defined."""
    for package in pkgutil.walk_packages(qim_streams.__path__, "qim_streams."):
        if not package.name.endswith("__main__"):
            importlib.import_module(package.name)
    found: set[type[QimError]] = set()
    left: list[type[QimError]] = [QimError]
    while left:
        found.add(cls := left.pop())
        left += cls.__subclasses__()
    return {cls for cls in found if cls.__module__.startswith("qim_streams")}


def test_every_error_has_a_row_in_the_policy_table() -> None:
    assert not [cls.__qualname__ for cls in all_errors() if cls not in POLICY]
    assert not [cls for cls in POLICY if not issubclass(cls, QimError)]


# -- failpoints


def used_failpoints() -> set[str]:
    """The names of failpoints in modules that hit any, whether written in the call or chosen before it."""
    return {
        node.value
        for source in sources()
        if "failpoints.hit(" in source.text and source.module != "qim_streams.failpoints"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FAILPOINT.fullmatch(node.value)
    }


FAILPOINT = re.compile(
    r"(writer|relay|membership|fanout|takeover|mailbox|qsession|archiver|gateway|rooms|shard|webhook|notification)"
    r"\.[a-z_]+"
)


def test_failpoints_in_the_code_are_the_declared_ones() -> None:
    assert all(FAILPOINT.fullmatch(name) for name in failpoints.NAMES)
    assert used_failpoints() == failpoints.NAMES


# -- topics


def test_only_topics_yaml_declares_topics() -> None:
    """Every topic that the code names is declared; nothing but ``streaming.topics`` creates any."""
    known = set(topics.load().topics)
    pattern = re.compile(r"\"(qim\.[a-z-]+\.v\d+|qim-[a-z-]+-[a-z_]+-changelog)\"")
    named = {name for source in sources() for name in pattern.findall(source.text)}
    assert named <= known
    creators = [s.module for s in sources() if re.search(r"\bNewTopic\(|create_topics\(", s.text)]
    assert creators == ["qim_streams.streaming.topics"]
