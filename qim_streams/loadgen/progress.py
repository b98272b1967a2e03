"""The line that is shown each second while a run goes on."""

from collections.abc import Callable
from typing import Any

from qim_streams.loadgen.histogram import Histogram, merged
from qim_streams.loadgen.options import BenchOptions


class Progress:
    """Collects what the processes say; a line is complete when each has spoken."""

    def __init__(self, options: BenchOptions, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._heard: dict[int, dict[int, dict[str, Any]]] = {}  # second -> process -> what it said
        self._before = {"acked": 0, "delivered": 0}

    def heard(self, process: int, what: dict[str, Any]) -> None:
        """A process has spoken."""
        if "sent" not in what:
            self._say("  " + ", ".join(f"{name} {value:,}" for name, value in what.items()))
            return
        second = what["second"]
        heard = self._heard.setdefault(second, {})
        heard[process] = what
        if len(heard) == self._options.processes:
            for old in [other for other in self._heard if other <= second]:
                del self._heard[old]
            self._line(second, list(heard.values()))

    def _line(self, second: int, parts: list[dict[str, Any]]) -> None:
        total = {
            name: sum(part[name] for part in parts)
            for name in ("sent", "acked", "delivered", "refused", "waiting")
        }
        ack, e2e = (
            merged(part[name] for part in parts if isinstance(part[name], Histogram))
            for name in ("ack", "e2e")
        )
        when = f"{second:7d} s" if second > 0 else f"warm-up {second}"
        rates = {name: total[name] - self._before[name] for name in self._before}
        self._before = {name: total[name] for name in self._before}
        self._say(
            f"{when}  sent {total['sent']:,}  acked/s {rates['acked']:,}  "
            f"delivered/s {rates['delivered']:,}  "
            f"ack P99 {_p99(ack)}  e2e P99 {_p99(e2e)}"
            + (f"  refused {total['refused']:,}" if total["refused"] else "")
            + (f"  waiting {total['waiting']:,}" if total["waiting"] > 1_000 else "")
        )


def _p99(part: Histogram) -> str:
    return f"{part.percentile_ms(0.99):,.0f} ms" if part.count else "-"
