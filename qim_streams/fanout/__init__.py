"""Stage two, first half: pin the membership, append one dispatch per shard (Spec: §4)."""
