"""What a run found out, and the two forms it is shown in: a JSON document and a table.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from qim_streams.loadgen.histogram import Histogram, merged
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.verdict import Verdict
from qim_streams.wire.codes import BY_CODE

SERVERS = {"kafka": "broker", "tansu": "broker", "redis": "redis"}
LATE_MAX_MS, BUSY_MAX = 20.0, 0.7


@dataclass(slots=True)
class Outcome:
    """A finished run. CPU is in seconds and memory in bytes.

    `ack`, `e2e`: latencies by the second of the intended time; `acked_at`, `delivered_at`: how much came
    in each second; `sent`: messages whose intended time lies in the measured part.
    """

    options: BenchOptions
    verdict: Verdict
    ack: dict[int, Histogram] = field(default_factory=dict)
    e2e: dict[int, Histogram] = field(default_factory=dict)
    mailboxed: Histogram | None = None
    late: Histogram = field(default_factory=Histogram)
    sent: int = 0
    acked_at: dict[int, int] = field(default_factory=dict)
    delivered_at: dict[int, int] = field(default_factory=dict)
    generator_cpu_s: list[float] = field(default_factory=list)
    role_cpu_s: dict[str, float] = field(default_factory=dict)
    rss_before: dict[str, int] = field(default_factory=dict)
    rss_after: dict[str, int] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    noted: dict[str, int] = field(default_factory=dict)
    recovered_by_pull: int = 0
    offline_checked: int = 0
    stopped_early: bool = False
    setup_s: dict[str, float] = field(default_factory=dict)
    drain_s: float = 0.0
    mailboxed_note: str = ""
    watermarks: Any = None  # the poll, while the run goes on

    @property
    def acked(self) -> int:
        """Acks that came in the measured part."""
        return sum(self.acked_at.values())

    @property
    def delivered(self) -> int:
        """Deliveries that came in the measured part."""
        return sum(self.delivered_at.values())

    @property
    def clean(self) -> bool:
        """Whether the run may exit with 0."""
        return self.verdict.clean and not self.stopped_early

    @property
    def ack_ms(self) -> dict[str, float]:
        """Percentiles of the time to SEND_ACK."""
        return merged(self.ack.values()).summary_ms()

    @property
    def e2e_ms(self) -> dict[str, float]:
        """Percentiles of the time to the recipients' devices."""
        return merged(self.e2e.values()).summary_ms()

    @property
    def generator_is_late(self) -> bool:
        """Whether the generator itself could not keep up."""
        return self.late.percentile_ms(0.99) > LATE_MAX_MS

    @property
    def busiest(self) -> float:
        """Share of a core that the busiest generator process used."""
        return max(self.generator_cpu_s, default=0.0) / self.options.duration_s


def role_of(name: str) -> str:
    """``mailbox-1`` is a mailbox; the servers have names of their own."""
    return SERVERS.get(name, name.split("-", maxsplit=1)[0])


def cpu_us(outcome: Outcome) -> dict[str, float]:
    """CPU microseconds per acknowledged message: generator, each role, `ours` (roles), `all` but the
    generator."""
    messages = max(1, outcome.acked)
    figures = {"generator": sum(outcome.generator_cpu_s) * 1e6 / messages}
    for name, seconds in outcome.role_cpu_s.items():
        role = role_of(name)
        figures[role] = figures.get(role, 0.0) + seconds * 1e6 / messages
    roles = {name: value for name, value in figures.items() if name != "generator"}
    if roles:
        servers = set(SERVERS.values())
        figures["ours"] = sum(value for name, value in roles.items() if name not in servers)
        figures["all"] = sum(roles.values())
    return {name: round(value, 1) for name, value in figures.items()}


def rss_mb(rss: Mapping[str, int]) -> dict[str, float]:
    """Resident megabytes per role."""
    totals: dict[str, float] = {}
    for name, size in rss.items():
        totals[role_of(name)] = totals.get(role_of(name), 0.0) + size / 1e6
    return {name: round(size, 1) for name, size in totals.items()}


def series(outcome: Outcome) -> list[dict[str, Any]]:
    """One row per second of the measured part: what came in it, and how long what was due in it took."""
    rows = []
    for second in range(ceil(outcome.options.duration_s)):
        ack, e2e = outcome.ack.get(second, Histogram()), outcome.e2e.get(second, Histogram())
        rows.append(
            {
                "second": second,
                "acked": outcome.acked_at.get(second, 0),
                "delivered": outcome.delivered_at.get(second, 0),
                "ack_p50_ms": round(ack.percentile_ms(0.5), 2),
                "ack_p99_ms": round(ack.percentile_ms(0.99), 2),
                "ack_max_ms": round(ack.max_us / 1_000, 2),
                "e2e_p50_ms": round(e2e.percentile_ms(0.5), 2),
                "e2e_p99_ms": round(e2e.percentile_ms(0.99), 2),
                "e2e_max_ms": round(e2e.max_us / 1_000, 2),
            }
        )
    return rows


def document(outcome: Outcome, surroundings: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON report. `surroundings`: settings, versions, machine, command line, time, commit."""
    options, verdict = outcome.options, outcome.verdict
    return {
        "workload": options.name,
        "offered_per_s": round(outcome.sent / options.duration_s, 1),
        "rate": options.rate,
        "duration_s": options.duration_s,
        "warm_up_s": options.warm_up_s,
        "connections": options.connections,
        "users": options.users,
        "processes": options.processes,
        "seed": options.seed,
        "encoding": options.encoding,
        "arrivals": options.arrivals,
        "body_bytes": options.body,
        "sent": verdict.sent,
        "acked": verdict.acked,
        "refused": verdict.refused,
        "refusals": {BY_CODE[code].name: count for code, count in verdict.refusals.most_common()},
        "unknown": verdict.unknown,
        "delivered_expected": verdict.delivered_expected,
        "delivered": verdict.delivered_expected - verdict.lost,
        "delivered_by_push": verdict.delivered,
        "delivered_by_pull": verdict.pulled,
        "recovered_by_pull": outcome.recovered_by_pull,
        "lost": verdict.lost,
        "duplicated_raw": verdict.duplicated_raw,
        "duplicated_visible": verdict.duplicated_visible,
        "reordered": verdict.reordered,
        "wrong": verdict.wrong,
        "reasons": dict(verdict.reasons),
        "overtaken": verdict.overtaken,
        "missing": [one._asdict() for one in verdict.missing[:20]],
        "offline_checked": outcome.offline_checked,
        "achieved_per_s": round(outcome.acked / options.duration_s, 1),
        "delivered_per_s": round(outcome.delivered / options.duration_s, 1),
        "ack_ms": outcome.ack_ms,
        "e2e_ms": outcome.e2e_ms,
        "mailboxed_ms": outcome.mailboxed.summary_ms() if outcome.mailboxed is not None else None,
        "mailboxed_note": outcome.mailboxed_note,
        "generator_late_ms": outcome.late.summary_ms(),
        "generator_busy": [round(cpu / options.duration_s, 3) for cpu in outcome.generator_cpu_s],
        "cpu_us_per_message": cpu_us(outcome),
        "rss_mb": rss_mb(outcome.rss_after),
        "rss_mb_before": rss_mb(outcome.rss_before),
        "faults": outcome.faults,
        "noted": outcome.noted,
        "stopped_early": outcome.stopped_early,
        "setup_s": {name: round(value, 2) for name, value in outcome.setup_s.items()},
        "drain_s": round(outcome.drain_s, 2),
        "verdict": "clean" if outcome.clean else "not clean",
        "series": series(outcome),
        **surroundings,
    }


def lines(outcome: Outcome) -> list[str]:
    """The report for a terminal."""
    options, verdict = outcome.options, outcome.verdict
    rows: list[tuple[str, str]] = [
        ("workload", f"{options.name}, {options.connections:,} connections of {options.users:,} users"),
        ("offered", f"{outcome.sent / options.duration_s:,.1f} msg/s for {options.duration_s:g} s"),
        (
            "achieved",
            f"{outcome.acked / options.duration_s:,.1f} acks/s, "
            f"{outcome.delivered / options.duration_s:,.1f} deliveries/s",
        ),
        ("ack", _latency(outcome.ack_ms)),
        ("end to end", _latency(outcome.e2e_ms)),
        ("mailboxed", _mailboxed(outcome)),
        ("sends", f"{verdict.sent:,} sent, {verdict.acked:,} acked, {verdict.refused:,} refused, "
         f"{verdict.unknown:,} unknown"),
        ("deliveries", f"{verdict.delivered_expected:,} expected, {verdict.delivered:,} by push, "
         f"{verdict.pulled:,} by pull ({outcome.recovered_by_pull:,} only by reading back)"),
        ("verdict", f"lost {verdict.lost}, duplicated visibly {verdict.duplicated_visible}, on the wire "
         f"{verdict.duplicated_raw}, reordered {verdict.reordered}, wrong {verdict.wrong}"),
        ("CPU", ", ".join(f"{name} {value:,.0f}" for name, value in cpu_us(outcome).items()) + " µs/msg"),
        ("memory", ", ".join(f"{name} {value:,.0f}" for name, value in rss_mb(outcome.rss_after).items())
         + " MB"),
        ("generator", f"{_busy(outcome)} of a core, late P99 {outcome.late.percentile_ms(0.99):.1f} ms"),
    ]  # fmt: skip
    shown = [f"  {name:<11} {text}" for name, text in rows]
    shown += [f"  fault       {fault['role']} killed at {fault['at_s']:g} s" for fault in outcome.faults]
    shown += [f"  noted       {name}: {count:,}" for name, count in sorted(outcome.noted.items())]
    shown += [f"  wrong       {name}: {count:,}" for name, count in verdict.reasons.items()]
    shown += [
        f"  missing     user {one.user} lacks {one.messages} of conversation {one.conversation}, "
        f"first {one.first_seq}"
        for one in verdict.missing[:5]
    ]
    if outcome.generator_is_late:
        shown.append(
            "  NOTE        the generator itself was late, for want of CPU: that is part of these latencies"
        )
    if outcome.busiest > BUSY_MAX:
        shown.append("  NOTE        a generator process was busy: raise --processes")
    if outcome.stopped_early:
        shown.append("  NOTE        sending was stopped: too many sends had no answer")
    shown.append("clean" if outcome.clean else "NOT CLEAN")
    return shown


def _latency(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name.upper()} {value:,.1f}" for name, value in figures.items()) + " ms"


def _mailboxed(outcome: Outcome) -> str:
    if outcome.mailboxed is None or not outcome.mailboxed.count:
        return outcome.mailboxed_note or "not measured"
    return _latency(outcome.mailboxed.summary_ms())


def _busy(outcome: Outcome) -> str:
    parts: Sequence[float] = [cpu / outcome.options.duration_s for cpu in outcome.generator_cpu_s]
    return " + ".join(f"{part:.0%}" for part in parts)
