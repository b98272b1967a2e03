"""Placement of users on MailboxShards, and how a shard is split while it serves.

Reading order: ``rules`` (mapping versions, positions), ``mapping_log`` (how a mapping is remembered),
``marker`` (where a log changes to the next version), ``follower`` (what a process knows), ``stage`` and
``mailboxes`` (what stages and readers see), ``operation`` (the steps).

Spec: §2, §11.
"""
