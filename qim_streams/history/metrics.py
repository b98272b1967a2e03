"""Metrics of history, updated once per page or store call.

Spec: §8.
"""

from prometheus_client import Counter, Histogram

PAGES = Counter("qim_history_pages_total", "PULL_HISTORY by what became of them", ("outcome",))
PAGE_OK = PAGES.labels("page")
PAGE_REFUSED = PAGES.labels("refused")
PAGE_FAILED = PAGES.labels("failed")
MESSAGES = Counter("qim_history_messages_total", "Messages in those pages")
HOT_READS = Counter("qim_history_hot_reads_total", "Calls to the hot tier for messages")
ARCHIVE_READS = Counter("qim_history_archive_reads_total", "Ranges read from the archive")
BLOCKS_SHARED = Counter("qim_history_blocks_shared_total", "Blocks that a reader got by somebody else's read")
UNREADABLE = Counter("qim_history_unreadable_total", "Records that could not be understood")
PAGE_SECONDS = Histogram(
    "qim_history_page_seconds",
    "Time to make a page",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
