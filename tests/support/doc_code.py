"""The Python of the documentation, so that tests can run what a reader would copy."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(page: str) -> list[str]:
    """The text of each Python block of a page; `page` is a path from the root."""
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def defined_by(code: str) -> dict[str, Any]:
    """What a block defines."""
    names: dict[str, Any] = {}
    exec(compile(code, "<documentation>", "exec"), names)
    return names


def as_function(code: str, *arguments: str) -> Callable[..., Any]:
    """A block that awaits outside of a function: a coroutine function of the names that it lacks."""
    head = f"async def example({', '.join(arguments)}):\n"
    function: Callable[..., Any] = defined_by(head + textwrap.indent(code, "    "))["example"]
    return function
