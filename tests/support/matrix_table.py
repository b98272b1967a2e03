"""The results of the kill matrix as a section of the report. Pure.

Spec: §3 to §7, §9 to §11.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

TITLE = "## Kill matrix"
PROBLEMS_SHOWN = 3

MatrixRow = dict[str, Any]  # an `Outcome` and the master seed


def percentile(ascending: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of at least one value."""
    return ascending[max(0, -(-percent * len(ascending) // 100) - 1)]


def table(rows: Sequence[MatrixRow], known: Mapping[str, str]) -> str:
    """The section: what was run, totals, a row per strike, what went wrong."""
    passed = [row for row in rows if row["outcome"] == "passed"]
    acked = sum(row["figures"].get("acked", 0) for row in rows)
    back = sorted(row["back_s"] for row in passed) or [0.0]
    seeds = ", ".join(sorted({str(row["master_seed"]) for row in rows}))
    lines = [
        TITLE,
        "",
        f"* written: {known['date']}, commit {known['commit']}, {known['machine']}",
        f"* seed {seeds}; {len(passed)} of {len(rows)} strikes passed; {acked} messages were acknowledged",
        f"* struck until ready again: median {median(back):.1f} s, P99 {percentile(back, 99):.1f} s, longest "
        f"{back[-1]:.1f} s (a paused process stands still for longer than its lease of them)",
        "",
        "| strike | hit | seed | outcome | fired, s | back, s | longest time without an ack, s | acked |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = row["figures"]
        cells = (
            f"`{row['name']}`",
            row["nth"],
            row["seed"],
            row["outcome"],
            row["fired_s"],
            row["back_s"],
            figures.get("longest time without any ack, s", "-"),
            figures.get("acked", "-"),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for row in rows:
        lines += [f"* `{row['name']}`: {text}" for text in row["problems"][:PROBLEMS_SHOWN]]
    return "\n".join(lines) + "\n"


def section_of(page: str) -> str:
    """The section as it stands in a page; empty when there is none."""
    _, found, after = page.partition(f"{TITLE}\n")
    if not found:
        return ""
    return (found + after.partition("\n## ")[0]).rstrip() + "\n"


def put_section(page: str, section: str) -> str:
    """A page with the section in place of the one that it has, else at its end."""
    before, found, after = page.partition(f"{TITLE}\n")
    if not found:
        return f"{page.rstrip()}\n\n{section}".lstrip()
    _, more, rest = after.partition("\n## ")
    return before + section + (f"\n## {rest}" if more else "")
