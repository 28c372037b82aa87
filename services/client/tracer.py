"""The interface by which a client records traces of sampled messages; telemetry implements it."""

from __future__ import annotations

from typing import Any, Protocol


class Tracer(Protocol):
    """Records traces of a client's sampled messages (telemetry/client_traces.py has one)."""

    def publish_started(self, sequence: int, topic: str) -> bytes:
        """Begins the trace of a publish; the 25 bytes of trace context that its record carries."""

    def publish_persisted(self, sequence: int) -> None:
        """Every publish and acknowledgment up to this sequence is durable. Called once an ack."""

    def publish_failed(self, sequence: int, reason: str) -> None:
        """The server refused this publish."""

    def delivered(
        self, trace: bytes, attributes: dict[str, Any], start_ns: int = 0, end_ns: int = 0
    ) -> None:
        """A sampled message reached its consumer. Of a queue's `attributes` has its `queue`."""

    def acknowledged(
        self, sequence: int, trace: bytes, attributes: dict[str, Any], start_ns: int
    ) -> None:
        """A sampled message of a queue was acknowledged at `start_ns`, by the record `sequence`."""
