"""Tests; see the modules."""
