"""services/messages/lossless_text.py: any bytes survive the way to a text and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raylay.services.messages.lossless_text import bytes_of, text_of


@given(st.binary(max_size=20))
def test_bytes_survive(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data


def test_utf_8_is_shown_as_it_is() -> None:
    assert text_of("é".encode()) == "é" and text_of(b"\xff") == "\udcff"
