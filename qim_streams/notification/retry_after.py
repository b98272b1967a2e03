"""The Retry-After header, in seconds or as a date, as a bounded delay. Pure but for the header's own Date.

Spec: §6. RFC 9110 10.2.3.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

DELAY_MAX_MS: Final = 3_600_000


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """How long to wait, at most an hour; None where nothing (or nonsense) is said.

    A date counts from the answer's own Date, so that nobody's clock matters.
    """
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:9]) * 1_000, DELAY_MAX_MS)
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(0, min(int(wait.total_seconds() * 1_000), DELAY_MAX_MS))
