"""Fan-out quotas of tenants (L3): token buckets of recipients, one copy per writer, one truth in the store.

A message may go while its tenant's bucket is above zero, and is charged with its recipients once they are
known; so a bucket may owe, and its tenant waits until it owes nothing. What a writer has charged is carried
to the shared bucket in batches (`due`, `answered`), never on the way of a message, and what the shared
bucket says replaces the copy.

Invariants: over any stretch of time all writers together let no more through than rate x time + burst + what
they had not told each other yet, which is at most a sixteenth of the burst for each writer and what they
let through between two reports; an excess is owed, not forgotten. Without the store each writer goes on
with its own copy. Memory: `tenants_max` buckets; the one charged longest ago gives way, and comes back full.

Spec: §3.2 L3, §13.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

TENANTS_MAX: Final = 20_000
REPORT_SHARE: Final = 16  # a writer reports once it holds this part of the burst
RULES_MS: Final = 5_000  # how old the known rules of a tenant that is speaking may be
WAIT_MIN_MS, WAIT_MAX_MS = 100, 30_000


class Report(NamedTuple):
    """What one tenant was charged here since the last report."""

    tenant_id: str
    charged: float


class Standing(NamedTuple):
    """The shared bucket after a report: its level (negative: owed) and the tenant's rate, 0 without bound."""

    level: float
    per_s: float


class Bucket:
    """The copy of one tenant. `level` is in recipients and negative while the tenant owes."""

    __slots__ = ("asked_ms", "at_ms", "burst", "level", "per_ms", "refused", "spoke", "unsent")

    def __init__(self, per_s: float, burst_s: float, now_ms: float) -> None:
        self.unsent, self.refused, self.spoke = 0.0, 0, False
        self.at_ms, self.asked_ms = now_ms, now_ms - RULES_MS
        self.level = self.burst = self.per_ms = 0.0
        self.set_rate(per_s, burst_s)
        self.level = self.burst

    def set_rate(self, per_s: float, burst_s: float) -> None:
        """Another rate; what is owed stays owed."""
        self.per_ms, self.burst = per_s / 1_000, per_s * burst_s
        self.level = min(self.level, self.burst)

    def take(self, recipients: int, now_ms: float) -> int:
        """Charge a message: 0, or how many milliseconds must pass before it may go (not charged)."""
        self.spoke = True
        if not self.per_ms:
            return 0
        if now_ms != self.at_ms:
            self.refill(now_ms)
        if self.level <= 0.0:
            self.refused += 1
            return min(WAIT_MAX_MS, max(WAIT_MIN_MS, int(-self.level / self.per_ms) + 1))
        self.charge(recipients)
        return 0

    def charge(self, recipients: float) -> None:
        """Charge, or (negative) give back."""
        if self.per_ms:
            self.level -= recipients
            self.unsent += recipients

    def refill(self, now_ms: float) -> None:
        """Up to `now_ms`; a clock that went back adds nothing."""
        passed_ms = now_ms - self.at_ms
        if passed_ms > 0:
            self.level = min(self.burst, self.level + passed_ms * self.per_ms)
        self.at_ms = now_ms


class TenantQuotas:
    """The buckets of one writer process."""

    def __init__(self, per_s: float, burst_s: float, tenants_max: int = TENANTS_MAX) -> None:
        """`per_s`: recipients per second of a tenant without a value of its own, 0 without bound."""
        self.per_s, self.burst_s = per_s, burst_s
        self._max = tenants_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, tenant_id: str, now_ms: float) -> Bucket:
        """The tenant's bucket, made if need be."""
        found = self._buckets.get(tenant_id)
        if found is None:
            found = self._buckets[tenant_id] = Bucket(self.per_s, self.burst_s, now_ms)
            if len(self._buckets) > self._max:
                self._buckets.popitem(last=False)
        return found

    def due(self, now_ms: float, count_max: int) -> list[Report]:
        """What is to be told to the store now: large charges, and tenants whose rules are old. Taken out."""
        reports: list[Report] = []
        for tenant_id, bucket in self._buckets.items():
            large = abs(bucket.unsent) * REPORT_SHARE >= bucket.burst > 0
            old = bucket.spoke and not 0 <= now_ms - bucket.asked_ms < RULES_MS
            if large or old:
                reports.append(Report(tenant_id, bucket.unsent))
                bucket.unsent, bucket.asked_ms, bucket.spoke = 0.0, now_ms, False
                if len(reports) >= count_max:
                    break
        for report in reports:  # in turn, if they are more than fit
            self._buckets.move_to_end(report.tenant_id)
        return reports

    def answered(self, report: Report, standing: Standing, now_ms: float) -> None:
        """What the shared bucket said to a report. What was charged since then is not in it yet."""
        bucket = self._buckets.get(report.tenant_id)
        if bucket is None:
            return
        bucket.set_rate(standing.per_s, self.burst_s)
        bucket.level, bucket.at_ms = standing.level - bucket.unsent, now_ms

    def unanswered(self, report: Report) -> None:
        """The report may not have arrived: it is told again, at most a burst of it."""
        bucket = self._buckets.get(report.tenant_id)
        if bucket is not None:
            bucket.unsent = min(bucket.burst, bucket.unsent + report.charged)

    def take_refused(self) -> list[tuple[str, int]]:
        """(tenant, refusals) since the last call, the most refused first."""
        found = [(tenant, bucket.refused) for tenant, bucket in self._buckets.items() if bucket.refused]
        for tenant, _ in found:
            self._buckets[tenant].refused = 0
        return sorted(found, key=lambda row: -row[1])
