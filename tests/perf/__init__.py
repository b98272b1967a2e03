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
* ``reconnect_storm``: thousands of clients come back at once to what they missed, beside others who talk.
  ``storm_filling`` says what they missed, ``storm_clients`` are they, ``storm_load`` are the others.
* ``rebuild_time``: a device of the SDK whose cursor is lost, with many conversations. Both use a whole stack
  (``running_stack``) and let people speak before (``talking``).
* ``memory``: bytes of Redis per message and entry; with ``--minutes`` a soak (``soak``).
* ``short``: what ``make bench`` runs, the load generator (``qim bench``) among it.

They fail (exit code 1) when something was lost, doubled or stuck. What needs no server is held by
``tests/unit/test_benchmarks.py``, ``test_measurements.py`` and ``test_storm_and_rebuild.py``;
``tests/integration/test_measurements.py`` runs the programs small, so that they do not rot.
"""
