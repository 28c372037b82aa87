"""Texts that hold any bytes: those that are no UTF-8 stand in the text as Python's
`surrogateescape` has them, so that the same bytes can be made of it again."""

from __future__ import annotations


def text_of(data: bytes) -> str:
    """Returns the text that holds these bytes."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Returns the bytes that a text holds."""
    return text.encode("utf-8", "surrogateescape")
