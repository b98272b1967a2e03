"""Latency over time as a PNG, with matplotlib, which is an optional extra: without it nothing is drawn."""

from pathlib import Path
from typing import Any

from qim_streams.loadgen.outcome import Outcome, series


def draw(outcome: Outcome, path: Path) -> str:
    """Write the picture; returns what to tell the user."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed (pip install 'qim-streams[bench]')"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = series(outcome)
    seconds = [row["second"] for row in rows]
    figure, (latency, rate) = pyplot.subplots(
        2, 1, sharex=True, figsize=(10, 6), height_ratios=(3, 1), layout="constrained"
    )
    for name, colour in (("ack", "tab:blue"), ("e2e", "tab:red")):
        for level, style in (("p50", ":"), ("p99", "-")):
            label = f"{'ACK' if name == 'ack' else 'end to end'} {level.upper()}"
            values = [row[f"{name}_{level}_ms"] for row in rows]
            latency.plot(seconds, values, style, color=colour, label=label)
    _marks(latency, outcome)
    latency.set_yscale("log")
    latency.set_ylabel("ms from the intended send time")
    latency.legend(loc="upper right", ncols=2)
    latency.grid(True, which="both", alpha=0.3)
    latency.set_title(
        f"{outcome.options.name}, {outcome.sent / outcome.options.duration_s:,.0f} msg/s offered"
    )
    rate.plot(seconds, [row["acked"] for row in rows], color="tab:blue", label="acked")
    rate.plot(seconds, [row["delivered"] for row in rows], color="tab:red", label="delivered")
    rate.set_ylabel("per second")
    rate.set_xlabel("second of the measured part")
    rate.set_ylim(bottom=0)
    rate.legend(loc="lower right", ncols=2)
    rate.grid(True, alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return f"plot: {path}"


def _marks(axes: Any, outcome: Outcome) -> None:
    for fault in outcome.faults:
        axes.axvline(fault["at_s"], color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"kill {fault['role']}", (fault["at_s"], 1), xycoords=("data", "axes fraction"), va="bottom"
        )
