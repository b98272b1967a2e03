"""Stage three: presence, push batches (Spec: §6)."""
