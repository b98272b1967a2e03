"""Presence as users see it: who is online, and when somebody was last seen. See `book`."""
