"""The archive: every committed message, once, for ever (Spec: §1 ARCHIVED, §3)."""
