"""Defects that were found in the running system, each held by a test; see README.md."""
