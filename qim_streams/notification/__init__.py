"""Offline push: registered devices, the queue of notifications, the providers (Spec: §6)."""
