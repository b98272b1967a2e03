"""Groups and direct chats: members, roles, versions, per-shard bitmaps, user ordinals (Spec: §4)."""
