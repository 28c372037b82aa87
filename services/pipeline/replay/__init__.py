"""Journals or a lake, published again."""
