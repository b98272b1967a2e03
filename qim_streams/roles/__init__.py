"""The composition root: each module builds one role from settings and runs it."""
