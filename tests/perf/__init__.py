"""Microbenchmarks of the hot pure functions: ``python -m tests.perf.run``, or ``make bench``.

``registry`` names them, ``bench_<stage>.py`` hold them, ``measure`` times them, ``figures`` keeps,
compares and prints what came out. Nothing here is a test: there is no time that must be met.
``tests/unit/test_benchmarks.py`` runs each body once, so that they do not rot.
"""
