"""PULL_HISTORY: pages of a conversation, out of hot tier and archive, for whom they are meant.

Reading order: ``rules`` (what a user may see, how a page is cut), ``ports``, ``blocks`` (both tiers as
one), ``shared_loads`` (readers of the same page share one read), ``service``; ``redis_history`` is the
hot tier's side.

Spec: §5 (membership bounds), §8 (REBUILD).
"""
