"""services/telemetry/conventions.py and otlp.py: spans as OpenTelemetry's conventions have them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from raylay.services.messages.trace_context import SCHEMA_URL
from raylay.services.telemetry.conventions import conventional
from raylay.services.telemetry.span_export import Attributes, FinishedSpan
from raylay.services.telemetry.tracing import derived, new_context

OF_MESSAGE: Attributes = {"bookmark": "7|8|", "topic": "flights/JFK", "body_bytes": 12}


def span(name: str, attributes: Attributes = OF_MESSAGE) -> FinishedSpan:
    return FinishedSpan(name, new_context(), b"", 10, 20, attributes)


@pytest.mark.parametrize(
    ("name", "of_client", "kind", "shown", "type_"),
    [
        ("publish", True, "PRODUCER", "publish flights/JFK", "send"),
        ("delivery", True, "CONSUMER", "deliver flights/JFK", "receive"),
        ("acknowledgment", True, "CLIENT", "ack flights/JFK", "settle"),
        ("commit", False, "SERVER", "commit", None),
        ("remote commit", False, "SERVER", "remote commit", None),
        ("link send", False, "CLIENT", "link send", None),
        ("delivery", False, "INTERNAL", "delivery", None),
        ("acknowledgment", False, "INTERNAL", "acknowledgment", None),
        ("enqueue", False, "INTERNAL", "enqueue", None),
    ],
)
def test_each_span_has_its_kind_and_operation(
    name: str, of_client: bool, kind: str, shown: str, type_: str | None
) -> None:
    found = conventional(span(name), of_client=of_client)
    assert (found.kind, found.name) == (kind, shown)
    attributes = found.attributes
    assert attributes["messaging.system"] == "raylay"
    assert attributes["messaging.operation.name"] == shown.removesuffix(" flights/JFK")
    assert attributes.get("messaging.operation.type") == type_
    assert attributes["messaging.message.id"] == "7|8|"
    assert attributes["messaging.destination.name"] == "flights/JFK"
    assert attributes["messaging.message.body.size"] == 12
    assert found.error == ""


def test_what_the_conventions_do_not_name_is_raylays() -> None:
    of_client = {
        "client": "ann",
        "subscription": "3",
        "instance": "A1",
        "queue": "work",
        "server_address": "127.0.0.1",
        "server_port": 9001,
    }
    found = conventional(span("delivery", of_client), of_client=True)
    assert found.name == "deliver"
    assert found.attributes == {
        "messaging.system": "raylay",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "receive",
        "messaging.client.id": "ann",
        "messaging.destination.subscription.name": "3",
        "messaging.raylay.instance": "A1",
        "messaging.raylay.queue": "work",
        "server.address": "127.0.0.1",
        "server.port": 9001,
    }


@pytest.mark.parametrize(
    ("outcome", "error", "text"),
    [
        ({"outcome": "failed", "reason": "not_entitled"}, "not_entitled", "not_entitled"),
        ({"outcome": "failed"}, "failed", "failed"),
        ({"outcome": "expired"}, "lease_expired", "expired"),
        ({"outcome": "persisted"}, "", ""),
        ({"outcome": "unknown"}, "", ""),
        ({}, "", ""),
    ],
)
def test_an_operation_that_failed_has_an_error(outcome: Attributes, error: str, text: str) -> None:
    found = conventional(span("publish", outcome), of_client=True)
    assert (found.error, found.error_text) == (error, text)
    assert found.attributes.get("error.type", "") == error


# -- as the SDK has them -----------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    pytest.importorskip("opentelemetry.sdk")
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch


def test_a_span_of_the_sdk_has_kind_status_scope_and_parent(
    environment: pytest.MonkeyPatch,
) -> None:
    from opentelemetry.trace import SpanKind, StatusCode

    from raylay.services.telemetry.otlp import SpanTranslator

    context, own = new_context(), derived(new_context(), "x")
    attributes = {**OF_MESSAGE, "outcome": "failed", "reason": "not_entitled"}
    made = FinishedSpan("publish", own, context[16:24], 10, 20, attributes)
    found = SpanTranslator("pub", of_client=True).translated(made)
    assert found.kind is SpanKind.PRODUCER
    assert found.status.status_code is StatusCode.ERROR
    assert found.status.description == "not_entitled"
    assert found.parent is not None and found.context is not None
    assert found.parent.span_id.to_bytes(8, "big") == context[16:24]
    assert found.parent.trace_id == found.context.trace_id == int.from_bytes(own[:16], "big")
    scope = found.instrumentation_scope
    assert scope is not None
    assert scope.name == "raylay"
    assert re.match(r"\d+\.\d+", scope.version or "")
    assert scope.schema_url == SCHEMA_URL
    assert (found.start_time, found.end_time) == (10, 20)


def test_the_conventions_are_a_version_that_the_sdk_knows() -> None:
    schemas = pytest.importorskip("opentelemetry.semconv.schemas")
    assert SCHEMA_URL in [each.value for each in schemas.Schemas]


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, "raylay-client"),
        ({"OTEL_SERVICE_NAME": "orders"}, "orders"),
        ({"OTEL_SERVICE_NAME": "orders", "OTEL_PYTHON_TRACER_PROVIDER": "none such"}, "orders"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "garbage"}, "raylay-client"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,team=x"}, "shop"),
    ],
)
def test_applications_have_a_service_name_of_their_own(
    environment: pytest.MonkeyPatch, variables: dict[str, str], service: str
) -> None:
    from raylay.services.telemetry.otlp import SpanTranslator

    for name, value in variables.items():
        environment.setenv(name, value)
    of_application = SpanTranslator("pub", of_client=True).resource.attributes
    assert of_application["service.name"] == service
    assert "service.version" not in of_application
    # An instance is started by an application, and inherits its environment.
    of_instance = SpanTranslator("A1", of_client=False).resource.attributes
    assert of_instance["service.name"] == "raylay"
    assert of_instance["service.instance.id"] == "A1"
    assert of_instance["service.version"]
    assert of_instance.get("team") == of_application.get("team")
