"""The client protocol without sockets: frames, codes, connection states (Spec: §6, §7)."""
