"""The OpenTelemetry semantic conventions for messaging spans, as Raylay's spans have them.

A span is kept with Raylay's short names (`bookmark`, `topic`; docs/tracing.md), which trace files
have, too. A collector gets the conventions' names, kinds and status: the translation is made by the
thread that exports, so that it costs a publish or a commit nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from raylay.services.messages.trace_context import MESSAGING_SYSTEM
from raylay.services.telemetry.span_export import Attributes, FinishedSpan

SpanKindName = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
"""The name of a kind of OpenTelemetry's `SpanKind`."""


class _Operation(NamedTuple):
    kind: SpanKindName
    name: str
    """The `messaging.operation.name`."""
    type: str = ""
    """The `messaging.operation.type`; empty: none of the conventions' types fits."""


_OF_CLIENTS = {
    "publish": _Operation("PRODUCER", "publish", "send"),
    "delivery": _Operation("CONSUMER", "deliver", "receive"),
    "acknowledgment": _Operation("CLIENT", "ack", "settle"),
}
_OF_INSTANCES = {
    "commit": _Operation("SERVER", "commit"),
    "link send": _Operation("CLIENT", "link send"),
    "remote commit": _Operation("SERVER", "remote commit"),
}
_NAMES = {
    "bookmark": "messaging.message.id",
    "topic": "messaging.destination.name",
    "subscription": "messaging.destination.subscription.name",
    "body_bytes": "messaging.message.body.size",
    "client": "messaging.client.id",
    "server_address": "server.address",
    "server_port": "server.port",
}
_ERRORS = {"failed": "", "expired": "lease_expired"}
"""Outcomes that are errors, with their `error.type`; empty: the span's `reason`."""


class ConventionalSpan(NamedTuple):
    """The parts of a span that the conventions name."""

    name: str
    kind: SpanKindName
    attributes: dict[str, str | int | float | bool]
    error: str
    """The `error.type`; empty: the operation did not fail."""
    error_text: str
    """The description of the status of a span with an error."""


def conventional(span: FinishedSpan, *, of_client: bool) -> ConventionalSpan:
    """Returns a span as the conventions name its parts.

    Args:
        of_client: whether a client reported the span; otherwise an instance, a link or a queue's
            owner did.
    """
    operations = _OF_CLIENTS if of_client else _OF_INSTANCES
    operation = operations.get(span.name) or _Operation("INTERNAL", span.name)
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": MESSAGING_SYSTEM,
        "messaging.operation.name": operation.name,
    }
    if operation.type:
        attributes["messaging.operation.type"] = operation.type
    for key, value in span.attributes.items():
        attributes[_NAMES.get(key) or f"messaging.{MESSAGING_SYSTEM}.{key}"] = value
    error, text = _error(span.attributes)
    if error:
        attributes["error.type"] = error
    topic = span.attributes.get("topic") if operation.type else None
    name = f"{operation.name} {topic}" if topic else operation.name
    return ConventionalSpan(name, operation.kind, attributes, error, text)


def _error(attributes: Attributes) -> tuple[str, str]:
    outcome = str(attributes.get("outcome", ""))
    if outcome not in _ERRORS:
        return "", ""
    reason = str(attributes.get("reason", "")) or outcome
    return _ERRORS[outcome] or reason, reason
