"""The session list: which conversations a user has, in which order, and what is unread. Spec: §9."""
