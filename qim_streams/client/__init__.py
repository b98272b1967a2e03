"""The Python client SDK: a correct client."""
