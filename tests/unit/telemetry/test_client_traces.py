"""Spans of what a client takes from queues and acknowledges. Those of its publishes are in
test_tracing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_server import FakeServer
from unit.client.test_client import client_of, run
from unit.telemetry.test_tracing import spans_in, tracing_to

from raylay.services.client import Client
from raylay.services.client.arguments import sample_every
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.tracing import derived, new_context

pytestmark = pytest.mark.covers("Fabrics and tracing", "a sampled message of a queue shows enqueue")

SELF = publisher_id("ann")


def taken(tracer: ClientTracer, sequence: int, context: bytes, ts_us: int = 9) -> dict[str, Any]:
    said = {"bookmark": f"7|{sequence}|", "topic": "orders", "queue": "work"}
    beside = {"instance": "A", "subscription": "s"}
    tracer.delivered(context, said | beside, ts_us * 1000, ts_us * 1000 + 5)
    return said


def test_an_acknowledgment_hangs_below_the_delivery_and_ends_when_it_is_persisted(
    tmp_path: Path,
) -> None:
    context = new_context()
    with tracing_to(tmp_path, "ann") as tracing:
        tracer = ClientTracer(tracing, "ann")
        tracer.acknowledged(4, context, taken(tracer, 1, context), 77)
        tracer.publish_persisted(3)
        tracing.flush()
        assert [span["name"] for span in spans_in(tmp_path)] == ["delivery"]
        tracer.publish_persisted(4)
    delivery, ack = spans_in(tmp_path)
    places = "A", "ann", "s", 9
    assert delivery["parent_id"] == derived(context, "delivery", *places)[16:24].hex()
    assert delivery["span_id"] == derived(context, "delivery", *places, "client")[16:24].hex()
    assert ack["parent_id"] == delivery["span_id"] and ack["start_ns"] == 77
    assert ack["attributes"] == {
        "bookmark": "7|1|",
        "topic": "orders",
        "queue": "work",
        "client": "ann",
        "by": f"{SELF}|4|",
        "outcome": "persisted",
    }


def test_an_acknowledgment_that_is_not_persisted_says_so(tmp_path: Path) -> None:
    context = new_context()
    with tracing_to(tmp_path, "ann") as tracing:
        tracer = ClientTracer(tracing, "ann", outstanding_max=2)
        for sequence in (1, 2, 3, 4):
            tracer.acknowledged(sequence, context, taken(tracer, sequence, context), 77)
        tracer.publish_failed(3, "bad_message")
        tracer.close()
    acks = [span for span in spans_in(tmp_path) if span["name"] == "acknowledgment"]
    assert [span["attributes"]["outcome"] for span in acks] == [
        "forgotten",
        "forgotten",
        "failed",
        "unknown",
    ]
    assert acks[2]["attributes"]["reason"] == "bad_message"


def test_deliveries_that_are_never_acknowledged_are_bounded(tmp_path: Path) -> None:
    with tracing_to(tmp_path, "ann") as tracing:
        tracer = ClientTracer(tracing, "ann", outstanding_max=2)
        for sequence in range(5):
            taken(tracer, sequence, new_context())
        assert len(tracer._taken) == 2


@run
async def test_the_library_tells_of_sampled_messages_of_queues_only() -> None:
    class Tracer(ClientTracer):
        def __init__(self) -> None:
            self.told: list[tuple[Any, ...]] = []
            self.given: list[dict[str, Any]] = []

        def delivered(self, trace: bytes, attributes: Any, *times: int) -> None:
            self.given.append(attributes)

        def acknowledged(self, sequence: int, *said: Any) -> None:
            self.told.append((sequence, *said))

        def publish_persisted(self, sequence: int) -> None:
            """They are published."""

    server = await FakeServer().start()
    server.auto_ack = True
    tracer, trace = Tracer(), new_context()
    builder = RecordBuilder(7, "orders", "json")
    async with client_of(server, tracer=tracer, sampling_ratio=0.0) as client:
        async with client.queue("work", backlog=8, ack="manual") as work:
            name = server.session.commands("subscribe")[-1]["sub"]
            for traced in (True, False):
                body = b"".join(
                    builder.build(at, b"x", 5, trace if traced and at == 2 else b"")
                    for at in (1, 2, 3)
                )
                server.session.deliver(name, body, q=1, **({"tr": 1} if traced else {}))
            messages = [await anext(work) for _ in range(6)]
            assert [each.is_sampled for each in messages] == [False, True] + [False] * 4
            messages[0].acknowledge()
            messages[1].expire()
            messages[3].cancel()
            await client.flush()
        ((sequence, told, said, since_ns),) = tracer.told
        assert (told, said["bookmark"], said["how"], said["queue"]) == (
            trace,
            "7|2|",
            "expire",
            "work",
        )
        assert sequence in server.session.published and since_ns > 0
        assert [each["queue"] for each in tracer.given] == ["work"]
    await server.stop()


@pytest.mark.parametrize(
    ("ratio", "every"), [(0, 0), (1, 1), (0.5, 2), (0.6, 2), (0.15, 7), (0.01, 100)]
)
def test_one_in_how_many_is_sampled(ratio: float, every: int) -> None:
    assert sample_every(ratio) == every


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_that_is_none(ratio: float) -> None:
    with pytest.raises(ConfigurationError, match=r"sampling_ratio is .* from 0 to 1"):
        Client("desk", ["host:1"], sampling_ratio=ratio)
