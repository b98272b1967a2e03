"""ConnectionNode: client sockets, sessions, and the last step of push.

Reading order: ``session`` (a connection from AUTH to close), ``live`` (the login barrier and the live
stream, as a rule) and ``feed`` (that rule on a socket), ``push`` (batches to sessions), ``presence``,
``shard`` (the leased ConnectionShard), ``server``, ``sweeper``.

Spec: §6, §7.
"""
