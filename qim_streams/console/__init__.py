"""The operator's console: what it shows, and the pages themselves.

* ``model``: what is shown, as values. * ``rules``: rates, lags and health (pure). * ``ports``: what is asked.
* ``topology``: the stages with rates, lag and owners. * ``worker_tables``: tables read from the workers that
  own them. * ``worker_views``: their web views over HTTP. * ``directory``: users, conversations and their
  messages. * ``shard_map``: shards, leases, epochs, a split's progress. * ``dead_letters``: look, give back,
  discard. * ``kafka_*``, ``redis_*``: adapters. * ``assets``: the files below ``static/``.

Invariants: nothing here is a source of truth, nothing is kept but the looks of the last minutes; what a store
or worker does not answer is said to be so and never shown as empty. The pages load nothing from outside.

It does not authenticate: the routes (`qim_streams.api`) do.

Spec: §11, §13.
"""
