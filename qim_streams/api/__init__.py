"""The HTTP admin API (OpenAPI), and nothing of its own: commands go through the writer."""
