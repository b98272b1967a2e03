"""The console's files: nothing from outside, nothing inline, nothing beside the table. Spec: §11; T-N1."""

import re
from pathlib import Path

import pytest

from qim_streams.console import assets

FILES = assets.load_assets()
STATIC = Path(assets.__file__).parent / "static"
SOURCES = [path for path in sorted(STATIC.rglob("*")) if path.is_file()]


def test_every_file_is_served_under_its_path_and_pages_under_their_names() -> None:
    paths = {path.relative_to(STATIC).as_posix() for path in SOURCES}
    assert set(FILES) == paths | set(assets.PAGES)
    assert FILES[""].is_page
    assert not FILES["console.css"].is_page


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_comes_from_outside(path: Path) -> None:
    """No URL of another host: names of XML namespaces and examples in comments aside."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    urls = re.findall(r"(?:https?:|wss?:)?//[\w.-]+", text)
    assert not [url for url in urls if "www.w3.org" not in url]
    assert "@import" not in text


@pytest.mark.parametrize("name", ["index.html", "chat.html"])
def test_pages_have_no_inline_script_or_style(name: str) -> None:
    page = (STATIC / name).read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page)


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.suffix == ".js"], ids=lambda path: path.name
)
def test_scripts_make_no_markup_and_no_code_of_text(path: Path) -> None:
    text = path.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
    )
    assert len(text.splitlines()) <= 800


def test_the_policy_names_what_is_allowed() -> None:
    policy = assets.headers(FILES[""])["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "connect-src 'self';" in policy
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"):
        assert part in policy


def test_only_origins_get_into_the_policy() -> None:
    given = [
        "ws://127.0.0.1:8080",
        "wss://chat.example",
        "wss://x; script-src *",
        "http://evil",
        "ws://a b",
        "*",
    ]
    policy = assets.headers(FILES["chat"], given)["Content-Security-Policy"]
    assert "connect-src 'self' ws://127.0.0.1:8080 wss://chat.example;" in policy
    assert "*" not in policy
