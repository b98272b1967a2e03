"""What a run of pass-through workers must have written, checked from the outside.

Input of the check: per partition, the source offsets as they lie in the output log, and the watermarks
that workers published, in the order in which they were published. Nothing of the product is used here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """What was found wrong or noteworthy."""

    missing: list[tuple[int, int]] = field(default_factory=list)  # (partition, offset)
    reordered: list[tuple[int, int]] = field(default_factory=list)
    repeated: int = 0
    watermark_back: list[tuple[int, int, int]] = field(default_factory=list)  # (partition, from, to)
    watermark_early: list[tuple[int, int]] = field(default_factory=list)  # above what was written

    @property
    def clean(self) -> bool:
        """No loss, no disorder, no false watermark. Repeats are judged by the caller."""
        return not (self.missing or self.reordered or self.watermark_back or self.watermark_early)


def judge(
    outputs: Mapping[int, Sequence[int]],
    expected: Mapping[int, Sequence[int]],
    watermarks: Sequence[tuple[int, int]],
) -> Verdict:
    """Compare `outputs` with the `expected` offsets per partition, and follow the watermarks.

    Order: the first occurrences must ascend. A repeat counts once per extra record.
    """
    verdict = Verdict()
    for partition, wanted in expected.items():
        seen: set[int] = set()
        highest = -1
        for offset in outputs.get(partition, ()):
            if offset in seen:
                verdict.repeated += 1
                continue
            if offset < highest:
                verdict.reordered.append((partition, offset))
            seen.add(offset)
            highest = max(highest, offset)
        verdict.missing.extend((partition, offset) for offset in wanted if offset not in seen)
    last: dict[int, int] = {}
    for partition, watermark in watermarks:
        if watermark < last.get(partition, -1):
            verdict.watermark_back.append((partition, last[partition], watermark))
        last[partition] = max(watermark, last.get(partition, -1))
        if watermark > max(outputs.get(partition, ()), default=-1):
            verdict.watermark_early.append((partition, watermark))
    return verdict
