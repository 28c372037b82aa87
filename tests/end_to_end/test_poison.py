"""Messages that a message type stumbles over end no instance: it refuses them and goes on."""

from __future__ import annotations

import signal
from base64 import b64encode
from pathlib import Path

import msgpack
import pytest
from support.instance_processes import Client, Executed, Servers, single
from support.protobuf_cases import descriptors

from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.sow.definition import SowTopicDefinition

QUOTE = TypeDefinition(
    "quote",
    "protobuf",
    {"descriptors": b64encode(descriptors("proto2")).decode(), "message": "market.Quote"},
)
GOOD = b"\x08\x07\x12\x03IBM"
POISON = b"\x08\x07\x12\x01\xff"
"""Its text is no UTF-8: the framing is that of a message all the same."""


@pytest.mark.parametrize("command", [1, 6], ids=["publish", "delta"])
def test_a_text_that_is_none_is_refused_and_the_session_goes_on(
    servers: Servers, tmp_path: Path, command: int
) -> None:
    server = single(
        servers,
        tmp_path,
        first=True,
        type_definitions=(QUOTE,),
        sow=(SowTopicDefinition("quotes", "quote", keys=("/id",)),),
    )
    client, other = Client(server.address, "desk"), Client(server.address, "other")
    told = {"c": "p", "t": "quotes", "mt": "quote", "a": "persisted"}
    client.send({**told, "s": 1}, GOOD)
    client.persisted(1)
    client.send({**told, "s": 2, "cmd": command}, POISON)
    answer = client.next(lambda frame: frame.header.get("s") == 2, kept="p").header
    if command == 6:
        assert (answer["status"], answer["reason"]) == ("failure", "bad_message")
        assert "type quote" in answer["text"]
    client.send({**told, "s": 3}, GOOD)
    client.persisted(3)
    other.send({**told, "s": 1}, GOOD)
    other.persisted(1)
    other.send({"c": "sow", "sub": "q", "t": "quotes", "cid": "q"}, msgpack.packb({}))
    assert server.process.poll() is None


FATAL = """
import os, signal
from raylay.services.messages.types.json import Json

class Fatal(Json):
    kind = "fatal"

    def parse(self, body):
        if b"poison" in bytes(body):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().parse(body)

def make(name, options):
    return Fatal(name)
"""


def test_a_message_that_ended_two_processes_is_refused_by_the_third(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    about = installed / "fatal-1.0.dist-info"
    about.mkdir(parents=True)
    (installed / "fatal.py").write_text(FATAL)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fatal\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[raylay.message_types]\nfatal = fatal:make\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    server = single(
        servers,
        tmp_path,
        kind=Executed,
        first=True,
        type_definitions=(TypeDefinition("fatal", "fatal", {}),),
        sow=(SowTopicDefinition("quotes", "fatal", keys=("/id",)),),
    )
    bodies = [b'{"id":1}', b'{"id":2}', b'{"id":3,"x":"poison"}', b'{"id":4}']

    def publish() -> Client:
        """All of them in one batch, as a client that was not told of any sends them again."""
        client = Client(server.address, "desk")
        builder = RecordBuilder(client.answer["publisher"], "quotes", "fatal")
        payload = b"".join(builder.build(at, body, 0) for at, body in enumerate(bodies, 1))
        client.send({"c": "pb", "n": len(bodies)}, payload)
        return client

    for _ in range(2):
        publish()
        assert server.process.wait(30) == -signal.SIGSEGV
        server.start()
    client = publish()
    refused = client.next(lambda frame: frame.header.get("status") == "failure").header
    assert refused["reason"] == "bad_message" and "ended 2 times" in refused["text"]
    client.persisted(4)
    client.send({"c": "sow", "sub": "q", "t": "quotes", "mt": "fatal", "cid": "q"}, b"")
    end = client.next(lambda frame: frame.header["c"] == "group_end")
    assert end.header["n"] == 3
    assert server.process.poll() is None
    assert "messages_suspected" in server.log
