"""Finished spans as a collector gets them, over OTLP. Needs the extra `raylay[otlp]`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from raylay.services.errors import ConfigurationError
from raylay.services.messages.trace_context import MESSAGING_SYSTEM, SCHEMA_URL
from raylay.services.telemetry.conventions import conventional
from raylay.services.telemetry.span_export import FinishedSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

CLIENT_SERVICE = "raylay-client"
"""The `service.name` of a program's clients, where neither the program nor its environment names
its service."""
_UNKNOWN_SERVICE = "unknown_service"


class SpanTranslator:
    """Makes the SDK's spans of finished ones.

    Args:
        process_name: the name of the process in the traces, the `service.instance.id`.
        of_client: whether the process is an application with clients.
    """

    def __init__(self, process_name: str, *, of_client: bool) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        self._of_client = of_client
        self._span_class, self._context_class = ReadableSpan, SpanContext
        self._kinds = {kind.name: kind for kind in SpanKind}
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._ok = Status(StatusCode.UNSET)
        self._status_class, self._error = Status, StatusCode.ERROR
        version = importlib.metadata.version("raylay")
        self._scope = InstrumentationScope(MESSAGING_SYSTEM, version, SCHEMA_URL)
        of_process: dict[str, str | int] = {
            "service.name": application_service() if of_client else MESSAGING_SYSTEM,
            "service.instance.id": process_name,
            "process.pid": os.getpid(),
        }
        if not of_client:  # The version of an application is not known here.
            of_process["service.version"] = version
        self.resource = Resource.create(of_process)

    def translated(self, span: FinishedSpan) -> ReadableSpan:
        """Returns the SDK's span, which is over."""
        trace_id = int.from_bytes(span.context[:16], "big")
        found = conventional(span, of_client=self._of_client)
        make = self._context_class
        parent = None
        if span.parent_id:
            parent = make(trace_id, int.from_bytes(span.parent_id, "big"), True, self._sampled)
        status = self._ok
        if found.error:
            status = self._status_class(self._error, found.error_text)
        return self._span_class(
            found.name,
            make(trace_id, int.from_bytes(span.context[16:24], "big"), False, self._sampled),
            parent,
            self.resource,
            found.attributes,
            kind=self._kinds[found.kind],
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


class OtlpExporter:
    """Sends spans to a collector.

    Args:
        endpoint: the collector's address, such as `http://127.0.0.1:4318`.

    Raises:
        ConfigurationError: the extra is not installed.
    """

    def __init__(self, endpoint: str, process_name: str, *, of_client: bool) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise ConfigurationError(
                "traces over OTLP need an extra: pip install 'raylay[otlp]'"
            ) from error
        self._translator = SpanTranslator(process_name, of_client=of_client)
        url = endpoint if "/v1/" in endpoint else endpoint.rstrip("/") + "/v1/traces"
        self._sdk: SpanExporter = OTLPSpanExporter(endpoint=url)

    def export(self, spans: Sequence[FinishedSpan]) -> None:
        self._sdk.export([self._translator.translated(span) for span in spans])

    def close(self) -> None:
        self._sdk.shutdown()


def application_service() -> str:
    """Returns the `service.name` of this application: the one of its own tracer provider, otherwise
    that of OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES, otherwise `raylay-client`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import get_tracer_provider

    provider: Any = None
    # The environment may name a provider that there is not.
    with suppress(Exception):
        provider = get_tracer_provider()
    resource: Resource = getattr(provider, "resource", None) or Resource.create()
    found = str(resource.attributes.get("service.name", ""))
    return CLIENT_SERVICE if not found or found.startswith(_UNKNOWN_SERVICE) else found
