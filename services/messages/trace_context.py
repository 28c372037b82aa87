"""The trace context that a sampled message carries: 25 bytes, big-endian, of the trace id (16), the
id of the span that published the message (8) and the trace flags (1).

They are the parts of a W3C `traceparent`, so that a message takes part in a trace of its
application.
"""

from __future__ import annotations

from raylay.services.messages.records import TRACE_BYTES

MESSAGING_SYSTEM = "raylay"
"""The `messaging.system` of spans by OpenTelemetry's conventions."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.38.0"
"""The version of the conventions that spans follow."""
SAMPLED = 1
"""The bit of the trace flags of a trace that is recorded."""


def packed(trace_id: int, span_id: int) -> bytes:
    """Returns the context of a span of a recorded trace; empty: an id is 0 or too large."""
    if not (0 < trace_id < 1 << 128 and 0 < span_id < 1 << 64):
        return b""
    return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big") + bytes((SAMPLED,))


def ids_of(context: bytes) -> tuple[int, int, int] | None:
    """Returns trace id, span id and flags; None: they are those of no span."""
    if len(context) != TRACE_BYTES:
        return None
    trace_id = int.from_bytes(context[:16], "big")
    span_id = int.from_bytes(context[16:24], "big")
    return (trace_id, span_id, context[24]) if trace_id and span_id else None


def traceparent(context: bytes) -> str:
    """Returns the context as the W3C's `traceparent`; empty: it is that of no span."""
    if ids_of(context) is None:
        return ""
    return f"00-{context[:16].hex()}-{context[16:24].hex()}-{context[24]:02x}"
