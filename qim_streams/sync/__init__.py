"""Cursors, login barrier, pulls (Spec: §7, §8)."""
