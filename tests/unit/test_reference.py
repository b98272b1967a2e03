"""The reference: its index is the docstrings', and what it shows is documented as the house demands."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import reference

_PROPERTY_PARTS = {"setter", "deleter", "overload"}


def test_the_index_is_what_the_docstrings_say() -> None:
    told = reference.INDEX.read_text(encoding="utf-8")
    assert told == reference.index(), "run `make docs`"
    assert told.count("| `") > 80


def test_every_part_of_a_client_is_in_it() -> None:
    client = importlib.import_module("qim_streams.client.client")
    source = Path(client.__file__ or "").read_text(encoding="utf-8")
    for attribute in reference.PARTS.values():
        assert re.search(rf"self\.{attribute} = ", source), attribute


def incomplete(text: str) -> Iterator[str]:
    """What is said too little of in a module: public names without a text or with one that does not end, and
    errors that a function raises of which nothing around it speaks."""
    tree = ast.parse(text)
    yield from _incomplete_in(tree.body, "", ast.get_docstring(tree) or "")


def _incomplete_in(body: list[ast.stmt], where: str, around: str) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name[0] == "_":
            continue
        told, name = ast.get_docstring(node) or "", where + node.name
        if isinstance(node, ast.ClassDef):
            yield from _incomplete_in(node.body, f"{name}.", around + told)
        elif _is_a_form_of_another(node) or told.startswith("See `"):
            continue
        else:
            yield from (
                f"{name}: {error}" for error in raised_by(node) if not _speaks_of(error, around + told)
            )
        if not told.split("\n\n")[0].rstrip().endswith((".", ":")):
            yield f"{name}: {told[:40]!r}"


def _is_a_form_of_another(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parts = {part for one in node.decorator_list for part in ast.unparse(one).split(".")}
    return bool(parts & _PROPERTY_PARTS)


def raised_by(node: ast.AST) -> list[str]:
    """Classes that a function raises by name; what it raises again is somebody else's."""
    causes = [one.exc for one in ast.walk(node) if isinstance(one, ast.Raise) and one.exc is not None]
    calls = [cause.func for cause in causes if isinstance(cause, ast.Call)]
    return sorted({one.id for one in calls if isinstance(one, ast.Name) and one.id[0].isupper()})


def _speaks_of(error: str, text: str) -> bool:
    return re.search(rf"\b{error}\b", text) is not None


@pytest.mark.parametrize("module", reference.modules())
def test_what_is_public_is_documented(module: str) -> None:
    """One sentence that ends; each error that it raises is named in it, in its class or in its module."""
    path = importlib.import_module(module).__file__
    assert path is not None
    assert not list(incomplete(Path(path).read_text(encoding="utf-8")))


def test_what_is_missing_is_caught() -> None:
    text = '''"""A module."""
class A:
    """No end"""
    def b(self):
        """Does it."""
        raise ValueError("x")
    def c(self):
        """Does it. ValueError: for fun."""
        raise ValueError("x")
    @b.setter
    def b(self, value): ...
def d(): pass
def _e(): pass
'''
    assert list(incomplete(text)) == ["A.b: ValueError", "A: 'No end'", "d: ''"]


@pytest.mark.slow
def test_pdoc_renders_it_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="extra docs: that the reference can be rendered is unproven")
    reference.render(tmp_path)
    for module in reference.modules():
        page = tmp_path / (module.replace(".", "/") + ".html")
        assert "<html" in page.read_text(encoding="utf-8"), module
    assert (tmp_path / "index.html").exists()
    inner = {path.stem for path in (tmp_path / "qim_streams" / "client").glob("*.html")}
    assert inner == {one.rpartition(".")[2] for one in reference.modules() if ".client." in one}
