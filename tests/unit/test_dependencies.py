"""``docs/dependencies.md`` against ``pyproject.toml`` and the code: a row per dependency, none too many."""

import ast
import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"Runtime": PROJECT["dependencies"]} | {
    ("Development" if name == "dev" else f"Optional: `{name}`"): wanted
    for name, wanted in PROJECT["optional-dependencies"].items()
}
# Distributions whose module has another name.
MODULES = {
    "faust-streaming": "faust",
    "mode-streaming": "mode",
    "confluent-kafka": "confluent_kafka",
    "prometheus-client": "prometheus_client",
    "pydantic-settings": "pydantic_settings",
    "PyJWT": "jwt",
    "PyYAML": "yaml",
}
# Used without an import of ours: found by redis-py itself.
FOUND_BY_OTHERS = {"hiredis"}


def names(requirements: list[str]) -> list[str]:
    """The distributions that requirements name."""
    return [re.split(r"[\[<>=~! ]", one, maxsplit=1)[0] for one in requirements]


def rows(section: str) -> dict[str, list[str]]:
    """The table of a section: package -> other cells."""
    text = PAGE.read_text().split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.parametrize("section", GROUPS)
def test_every_dependency_has_a_row_and_every_row_a_dependency(section: str) -> None:
    assert sorted(rows(section)) == sorted(names(GROUPS[section]))


@pytest.mark.parametrize("section", GROUPS)
def test_every_row_says_what_for_why_and_what_it_costs(section: str) -> None:
    for name, cells in rows(section).items():
        assert len(cells) == 5, name
        assert all(cells), name
        assert re.search(r"\d MB", cells[2]), f"{name}: no measured size"


def test_every_runtime_dependency_is_used() -> None:
    """What nothing imports is to be removed, not carried along."""
    paths = [
        path for package in ("qim_streams", "agents", "tables") for path in (ROOT / package).rglob("*.py")
    ]
    code = "\n".join(path.read_text() for path in paths)
    unused = [
        name
        for name in names(PROJECT["dependencies"])
        if name not in FOUND_BY_OTHERS
        and not re.search(rf"^\s*(import|from) {MODULES.get(name, name)}\b", code, re.MULTILINE)
    ]
    assert not unused


# -- private names of other packages

STREAMING = ROOT / "qim_streams" / "streaming"
FOREIGN = ("faust", "mode", "aiokafka")


def listed_names() -> dict[str, set[str]]:
    """The page's list: class or module -> private names."""
    return {
        target: set(cells[0].split(", ")) for target, cells in rows("Private names we reach into").items()
    }


def resolve(target: str) -> object:
    """The module or class of a dotted name."""
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError:
        module, _, name = target.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("target", listed_names())
def test_private_names_that_we_use_exist_in_the_installed_package(target: str) -> None:
    """A minor release that renames one fails here and not in a worker."""
    owner = resolve(target)
    for name in listed_names()[target]:
        assert hasattr(owner, name) or re.search(rf"\b{name}\b", inspect.getsource(owner)), name  # type: ignore[arg-type]


def used_names(path: Path) -> set[str]:
    """Private names of other packages that a module uses or overrides."""
    module = importlib.import_module(f"qim_streams.streaming.{path.stem}")
    tree = ast.parse(path.read_text())
    private = re.compile(r"_(?![A-Z_]+\Z)[A-Za-z]\w*")  # constants are public
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {name for node in ast.walk(tree) for name in _assigned_to_self(node)}
    own |= {
        one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) != "os"}  # _exit is documented
    found = {name for name in used - own if private.fullmatch(name)}
    for cls in vars(module).values():
        if inspect.isclass(cls) and cls.__module__ == module.__name__:
            bases = [base for base in cls.__mro__[1:] if base.__module__.split(".")[0] in FOREIGN]
            overridden = {name for base in bases for name in vars(cls) if name in vars(base)}
            found |= {name for name in overridden if private.fullmatch(name) and name != "_abc_impl"}
    return found


def _assigned_to_self(node: ast.AST) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        one.attr
        for target in targets
        if target is not None
        for one in ast.walk(target)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
    }


def test_no_private_name_is_used_that_the_page_does_not_list() -> None:
    listed = set().union(*listed_names().values())
    used = {name for path in STREAMING.glob("*.py") if path.stem != "__init__" for name in used_names(path)}
    assert used - listed == set(), "list them on the page, with a reason"
    code = "\n".join(path.read_text() for path in STREAMING.glob("*.py"))
    assert not [name for name in listed if not re.search(rf"\b{name}\b", code)], "no longer used"
