"""Webhooks: what was committed, told to an application's endpoint in order. See `delivery`."""
