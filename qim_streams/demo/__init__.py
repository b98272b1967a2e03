"""What make demo plays, and the check of what came out.

Reading order: `traces` (a real room as rows and steps), `check` (the verdict on a mailbox), `people` (real
clients), `player` (a room), `scenes` (four short ones), `run` (all of it, with a report).
"""
