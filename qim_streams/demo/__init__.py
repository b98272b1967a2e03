"""What make demo plays, and the check of what came out.

Reading order: `traces` (a real room as rows and steps), `check` (the verdict on a mailbox), `people` (real
clients), `player` (a room), `scenes` (four short ones), `shows` (a chat room, presence, a notification), with
`receiver` (who is notified), `run` (all of it, with a report).
"""
