"""Every value of a publish at its limits, against a real instance: what the client takes, the
instance takes or refuses by itself; neither ends the connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import DEADLINE_S, Servers, single

from raylay.services.client import SyncClient
from raylay.services.client.events import Disconnected, PublishFailed
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import CommandFailed, LocalProtocolError
from raylay.services.messages.records import (
    EXPIRATION_S_MAX,
    KEY_BYTES_MAX,
    PUBLISHED,
    RECORD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TRACE_BYTES,
    TYPE_BYTES_MAX,
    Command,
    RecordBuilder,
    iterate_records,
    publisher_id,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.stores import LmdbPublishStore

pytestmark = pytest.mark.covers(
    "Clients and protocol", "a client refuses what no instance takes of a publisher"
)

BODIES = [b"", b"{}", b"\xff\x00", b"\x81\xa4keys\x90", b"\xc1" * 100, bytes(70_000)]
TOPICS = ["orders", "stock", "keyed", "work", "\x00", "/AMPS/x", "(", "t" * TOPIC_BYTES_MAX]


class Tracer:
    """One that gives each publish the longest context."""

    def publish_started(self, *_: Any) -> bytes:
        return b"\xff" * TRACE_BYTES

    def publish_persisted(self, *_: Any) -> None: ...
    def publish_failed(self, *_: Any) -> None: ...
    def delivered(self, *_: Any) -> None: ...
    def acknowledged(self, *_: Any) -> None: ...


def test_no_value_that_the_client_takes_ends_the_connection(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        sow=(
            SowTopicDefinition("stock", "json", keys=("/id",)),
            SowTopicDefinition("keyed", "json"),
        ),
        queue_definitions=(QueueDefinition("work", "json"),),
    )
    events: list[Any] = []
    failed: list[PublishFailed] = []
    client = SyncClient(
        "desk",
        [server.address],
        on_event=events.append,
        on_publish_failed=failed.append,
        tracer=Tracer(),
        sampling_ratio=1,
    )
    published = 0

    def publish(topic: str, body: bytes, message_type: str = "json", **values: Any) -> None:
        nonlocal published
        client.publish(topic, body, message_type, **values)
        published += 1

    with client:
        for command in (0, *PUBLISHED):
            for topic in TOPICS:
                for body in BODIES:
                    publish(topic, body, command=command)
            client.flush(DEADLINE_S)
        for values in (
            {"key": bytes(KEY_BYTES_MAX), "correlation": b"\xff" * KEY_BYTES_MAX},
            {"expiration_s": EXPIRATION_S_MAX},
            {"message_type": "y" * TYPE_BYTES_MAX},
            {"message_type": "\x00"},
        ):
            for command in (0, *PUBLISHED):
                for topic in TOPICS:
                    publish(topic, b"{}", command=command, **values)
        publish("orders", bytes(RECORD_BYTES_MAX - 2048 - 25))
        client.flush(DEADLINE_S)
        with pytest.raises(LocalProtocolError):
            client.publish("orders", b"{}", command=99)
        for command in set(Command) - PUBLISHED:
            with pytest.raises(LocalProtocolError, match="command is"):
                client.publish("orders", b"{}", command=command)
        client.publish("orders", b"{}")
        client.flush(DEADLINE_S)
        assert not [event for event in events if isinstance(event, Disconnected)]
        assert 0 < len(failed) < published


def test_a_type_that_the_transport_does_not_take_is_refused_and_the_others_go_on(
    servers: Servers, tmp_path: Path
) -> None:
    typed = TransportConfig("typed", message_types=("fix", "nvfix"))
    server = single(servers, tmp_path, client_transports=(TransportConfig("client"), typed))
    failed: list[PublishFailed] = []
    with SyncClient(
        "desk",
        [server.status["client_transports"]["typed"]],
        on_publish_failed=failed.append,
    ) as client:
        for number, message_type in enumerate(("fix", "json", "nvfix", "xml", "fix")):
            client.publish("orders", b"%d" % number, message_type)
        client.flush(DEADLINE_S)
        bodies = [next(iterate_records(each.record)).body for each in failed]
        assert bodies == [b"1", b"3"]
        assert {each.error.reason for each in failed} == {"bad_message_type"}
        assert "'json', and this transport takes fix, nvfix only" in str(failed[0].error)
    assert len(server.journal()) == 3


def test_a_store_that_holds_what_no_instance_takes_loses_that_alone(
    servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = single(servers, tmp_path, first=True)
    store = LmdbPublishStore(tmp_path / "publishes.lmdb")
    builder = RecordBuilder(publisher_id("desk"), "orders", "json")
    for sequence, command in enumerate((1, 99, 1, 5, 1), 1):
        store.put(sequence, builder.build(sequence, b"%d" % sequence, sequence, command=command))
    store.flush()
    with SyncClient("desk", [server.address], publish_store=store) as client:
        for sequence, command in ((2, 99), (4, 5)):
            with pytest.raises(CommandFailed, match=f"publish {sequence} .* command {command}: "):
                client.flush(DEADLINE_S)
        client.publish("orders", b"6")
        client.flush(DEADLINE_S)
    store.close()
    assert [sequence for _, sequence in server.journal()] == [1, 3, 5, 6]
    (warning,) = [each for each in caplog.messages if "ended the connection of client desk" in each]
    assert "solo ended" in warning and "bad_record" in warning
