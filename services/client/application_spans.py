"""The application's own OpenTelemetry spans: the one in which it publishes, and those in which it
handles messages.

A publish takes the trace of the current span into its record, and a consumer continues it
(docs/tracing.md). A process without a tracer provider pays nothing for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from raylay.services.client.messages import MessageBatch
from raylay.services.messages.trace_context import (
    MESSAGING_SYSTEM,
    SAMPLED,
    SCHEMA_URL,
    ids_of,
    packed,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

LINKS_MAX = 128
"""Most messages to which the span of a batch has links. It is the SDK's own limit."""

_tracer: tuple[Any, Tracer] | None = None
"""The provider that was asked last, and its tracer."""


def span_reader() -> Callable[[], bytes] | None:
    """Returns a function that returns the context of the current span, 25 bytes, or nothing where
    there is none or its trace is not recorded. None: the process has no tracer provider, so that
    there is nothing to look for at each publish."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        provider = trace.get_tracer_provider()
    except Exception:
        # It may be one that the environment names wrongly: then nobody has spans.
        return None
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    current = trace.get_current_span

    # A program publishes many messages in one span, or in none: each is packed once. Threads of a
    # SyncClient replace the pair as a whole.
    last: tuple[Any, bytes] = trace.INVALID_SPAN, b""

    def read() -> bytes:
        nonlocal last
        known, given = last
        try:
            span = current()
            if span is known:
                return given
            context = span.get_span_context()
            is_sampled = context.trace_flags & SAMPLED
            given = packed(context.trace_id, context.span_id) if is_sampled else b""
        except Exception:
            # A span of another library may do what it likes: the publish goes on without it.
            return b""
        last = span, given
        return given

    return read


def remote_span(trace: bytes) -> SpanContext | None:
    """Returns the span that published a message, from the 25 bytes of its record; None: they are
    those of no span."""
    ids = ids_of(trace)
    if ids is None:
        return None
    from opentelemetry.trace import SpanContext, TraceFlags

    trace_id, span_id, flags = ids
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


class ApplicationSpans:
    """Makes spans by the application's own tracer provider, for `Message.span` and
    `MessageBatch.span`."""

    def context_of(self, trace: bytes) -> Context:
        """Returns the present context with the span that published a message as the current one;
        the present context where that is none."""
        from opentelemetry.context import get_current
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        span = remote_span(trace)
        return get_current() if span is None else set_span_in_context(NonRecordingSpan(span))

    @contextmanager
    def handling_span(
        self,
        name: str,
        topic: str,
        traces: Sequence[bytes],
        attributes: Mapping[str, Any],
        *,
        is_batch: bool,
    ) -> Iterator[Span]:
        """Makes a span of the application's in which it handles messages, as the current one.

        Args:
            name: name of the span; empty: `process TOPIC`.
            topic: topic of the messages; empty: they have several.
            traces: the 25 bytes of each message that is sampled.
            attributes: attributes of the messages, by the conventions.
            is_batch: whether the span has links to the spans that published the messages, and not
                that of the one message as its parent.
        """
        from opentelemetry import trace

        links, context = [], None
        if is_batch:
            found = [span for span in map(remote_span, traces[:LINKS_MAX]) if span is not None]
            links = [trace.Link(span) for span in found]
        elif remote_span(traces[0]) is not None:
            context = self.context_of(traces[0])
            around = trace.get_current_span().get_span_context()
            if around.is_valid:
                links = [trace.Link(around)]
        said = {
            "messaging.system": MESSAGING_SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            **({"messaging.destination.name": topic} if topic else {}),
            **attributes,
        }
        made = _tracer_now().start_as_current_span(
            name or f"process {topic}".rstrip(),
            context=context,
            kind=trace.SpanKind.CONSUMER,
            attributes=said,
            links=links,
        )
        with made as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise


def _tracer_now() -> Tracer:
    global _tracer
    from opentelemetry.trace import get_tracer, get_tracer_provider

    provider = get_tracer_provider()
    if _tracer is None or _tracer[0] is not provider:
        from importlib.metadata import version

        found = get_tracer(MESSAGING_SYSTEM, version("raylay"), provider, SCHEMA_URL)
        _tracer = provider, found
    return _tracer[1]


MessageBatch.spans = ApplicationSpans()
