"""Login and offline sync: signed cursors, their verdict, what a session covers, pulls.

Reading order: ``cursor`` (the token), ``verdict`` (the fixed order), ``session`` (coverage), ``pull``
(batches that prove what they cover), ``service`` (opening a session).

Spec: §7, §8.
"""
