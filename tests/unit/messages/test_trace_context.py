"""services/messages/trace_context.py"""

from __future__ import annotations

import pytest

from raylay.services.messages.trace_context import ids_of, packed, traceparent


def test_a_context_is_the_parts_of_a_traceparent() -> None:
    context = packed(0xABC, 0xDEF)
    assert len(context) == 25
    assert ids_of(context) == (0xABC, 0xDEF, 1)
    assert traceparent(context) == f"00-{0xABC:032x}-{0xDEF:016x}-01"
    assert packed((1 << 128) - 1, (1 << 64) - 1) == b"\xff" * 24 + b"\1"


@pytest.mark.parametrize("ids", [(0, 1), (1, 0), (-1, 1), (1 << 128, 1), (1, 1 << 64)])
def test_ids_out_of_range_are_those_of_no_span(ids: tuple[int, int]) -> None:
    assert packed(*ids) == b""


@pytest.mark.parametrize(
    "context", [b"", b"\1" * 24, b"\1" * 26, bytes(16) + b"\1" * 9, b"\1" * 16 + bytes(8) + b"\1"]
)
def test_bytes_of_no_span(context: bytes) -> None:
    assert ids_of(context) is None
    assert traceparent(context) == ""
