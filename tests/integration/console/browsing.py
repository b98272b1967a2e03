"""A real headless Chromium that looks at the console of a running stack.

`Browser` opens tabs that are signed in, notes what they ask for and what goes wrong in them, and finds things
on the screen by what people see. Playwright drives it; both are optional, `missing()` says what is not there.
"""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PATIENCE_MS = 60_000  # on a busy machine; what is there is seen at once
PLACES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
]  # fmt: skip
KEY = "qim.console.key"


def executable() -> str | None:
    """The browser of this machine; QIM_TEST_BROWSER names another one."""
    return os.environ.get("QIM_TEST_BROWSER") or next(filter(None, map(shutil.which, PLACES)), None)


def missing() -> str | None:
    """Why no browser can be driven here; None when one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (pip install '.[browser]')"
    if executable() is None:
        return "there is no Chromium (apt-get install chromium)"
    return None


@dataclass
class Tab:
    """A tab. `wrong`: errors of scripts and refused resources; `urls`: everything that was asked for."""

    page: Any
    url: str
    wrong: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        self.page.on("console", lambda said: self._heard(said.type, said.text))
        self.page.on("request", lambda request: self.urls.append(request.url))

    def _heard(self, kind: str, text: str) -> None:
        # Answers such as 401 and 404 are shown by the page; Chromium tells of them all the same.
        if kind == "error" and "the server responded with a status of" not in text:
            self.wrong.append(text)

    def go(self, place: str) -> "Tab":
        """Open a place of the console, such as ``#/topology`` or ``chat#...``."""
        self.page.goto(f"{self.url}/console/{place}")
        return self

    def sees(self, text: str, *, within: str = "body") -> None:
        """Wait until a text is on the screen."""
        self.page.locator(within).get_by_text(text).first.wait_for(state="visible")

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript condition holds."""
        self.page.wait_for_function(condition, arg=argument, timeout=PATIENCE_MS)

    def text(self, selector: str = "main") -> str:
        """What is written somewhere."""
        return str(self.page.locator(selector).first.inner_text())

    def rows(self, caption: str) -> Any:
        """The rows of the table with a caption."""
        table = self.page.locator("table", has=self.page.locator("caption", has_text=caption))
        return table.locator("tbody tr:not(.skeleton)")

    def settled(self) -> "Tab":
        """Wait until no table waits for its rows any more."""
        self.page.locator("h1").first.wait_for()
        self.until("() => !document.querySelector('.skeleton, [aria-busy]')")
        return self

    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )


class Browser:
    """Opens tabs on the console at `url`, signed in with `key`."""

    def __init__(self, chromium: Any, url: str, key: str) -> None:
        self._chromium, self.url, self.key = chromium, url, key

    @contextmanager
    def tab(
        self, *, width: int = 1280, height: int = 860, dark: bool = False, signed_in: bool = True
    ) -> Iterator[Tab]:
        """A tab of a fresh profile."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        if signed_in:
            context.add_init_script(f"sessionStorage.setItem({json.dumps(KEY)}, {json.dumps(self.key)})")
        try:
            yield Tab(context.new_page(), self.url)
        finally:
            context.close()


@contextmanager
def browser(url: str, key: str) -> Iterator[Browser]:
    """A running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        try:
            yield Browser(chromium, url, key)
        finally:
            chromium.close()
