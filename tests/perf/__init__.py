"""Measurements. Nothing here is a test: no program fails because something was slow.

``python -m tests.perf.<program> --help``; ``make bench`` runs the short form of the most telling ones,
``make bench-micro`` the first one only.

* ``run``: microbenchmarks of the hot pure functions, compared between commits (``registry`` names them,
  ``bench_<stage>`` hold them, ``measure`` times them, ``figures`` keeps and prints them).
* ``backlog``: waiting messages through fan-out and mailbox stage, and the stock Faust style (``baseline``)
  on the same records. ``filling`` commits them, ``stages`` starts who drains them, ``draining`` measures,
  ``checking`` counts what came out.
* ``growth``: the same with more workers and more shards.
* ``commit_cost``: a commit by batch size and by size of the group.
* ``pull_rate``: an offline sync per entry, in the gateway and in Redis.
* ``memory``: bytes of Redis per message and entry; with ``--minutes`` a soak (``soak``).
* ``short``: what ``make bench`` runs, the load generator (``qim bench``) among it.

They fail (exit code 1) when something was lost, doubled or stuck. ``tests/unit/test_benchmarks.py`` and
``tests/unit/test_measurements.py`` hold what needs no server, ``tests/integration/test_measurements.py``
runs the programs small, so that they do not rot.
"""
