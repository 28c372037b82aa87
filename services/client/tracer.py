"""The interface by which a client records traces of sampled messages; telemetry implements it."""

from __future__ import annotations

from typing import Any, Protocol


class Tracer(Protocol):
    """Records traces of a client's sampled messages (telemetry/client_traces.py has one)."""

    def publish_started(
        self, sequence: int, topic: str, attributes: dict[str, Any], parent: bytes = b""
    ) -> bytes:
        """Begins the span of a publish; returns the 25 bytes of trace context for its record.
        `parent`: the context of the application's span in which it publishes; empty: none."""

    def publish_persisted(self, sequence: int) -> None:
        """Notes that every publish and acknowledgment up to this sequence is durable. Called once
        for each ack."""

    def publish_failed(self, sequence: int, reason: str) -> None:
        """Notes that the server refused this publish."""

    def delivered(
        self, trace: bytes, attributes: dict[str, Any], start_ns: int = 0, end_ns: int = 0
    ) -> None:
        """Notes that a sampled message reached its consumer. `attributes` has `queue` for a message
        of a queue."""

    def acknowledged(
        self, sequence: int, trace: bytes, attributes: dict[str, Any], start_ns: int
    ) -> None:
        """Notes that a sampled message of a queue was acknowledged at `start_ns`, by the record
        `sequence`."""
