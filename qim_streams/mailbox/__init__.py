"""Stage two, second half: one small entry per recipient, and the watermark that proves it (Spec: §5)."""
