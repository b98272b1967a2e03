"""Stage one: SEND_MESSAGE becomes durable and is acknowledged (Spec: §3)."""
