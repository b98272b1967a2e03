"""The load generator behind ``qim bench``: open loop, every delivery checked, one verdict.

Reading order: ``options`` (what is asked), ``plan`` (users, conversations, lanes), ``schedule`` (when),
``message`` (what a body carries), ``frames`` (bytes), ``ledger`` and ``verdict`` (what must be true),
``search`` (the highest rate) are pure. ``socket``, ``device``, ``sender`` and ``worker`` are one
generator process; ``fleet``, ``run``, ``procfs``, ``redis_watermarks``, ``report`` and ``plot`` the process
that commands them.

Invariants: latency counts from the intended send time, which never depends on an answer; a message is
never given up without its outcome being known or reported.
"""
