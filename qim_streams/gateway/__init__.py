"""ConnectionNode: sockets, sessions, routing to writers (Spec: §3, §6, §7)."""
