"""A fault in the handler of a frame: what ends, and what goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.link_peers import DESCRIPTION
from support.one_instance import events
from unit.server.clients.test_fuzzed import LOGON, Bench

from raylay.services.errors import StorageError, UnfinishedStep
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.services.protocol.client.codec import NativeCodec
from raylay.services.protocol.frames import encode_frame
from raylay.services.protocol.link.replication import UpstreamLogon, lacks_frames, link_logon
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.publishers import Publishers
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.logon import ClientLogon
from raylay.services.server.links import upstream_connection
from raylay.services.server.links.access import LinkAccess
from raylay.services.server.links.upstream_connection import UpstreamConnection

SECRET_WORDS = "planted"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.patience_s = 2.0
    yield made
    made.close()


def raises(error: type[BaseException] = KeyError) -> Callable[..., Any]:
    def fault(*_: Any, **__: Any) -> Any:
        raise error(SECRET_WORDS)

    return fault


def a_record(sequence: int = 1) -> bytes:
    record = RecordBuilder(publisher_id("fuzz"), "orders", "json").build(sequence, b"{}", 0)
    return encode_frame({"c": "pb", "n": 1}, record)


def lacks() -> bytes:
    missing = PublisherRanges()
    missing.of(5).add(1, 3)
    return lacks_frames(missing, True)[0]


def a_link(bench: Bench, *frames: bytes) -> None:
    logon = UpstreamLogon("up", "g", 77, "g", "to-solo", next(bench.numbers), b"", 0, DESCRIPTION)
    bench.run(bench.server.runtime.replication_address, link_logon(logon), list(frames))


def a_client(bench: Bench, *frames: bytes) -> None:
    bench.run(bench.addresses()[0], encode_frame(LOGON), list(frames))


BEAT = encode_frame({"c": "heartbeat", "cid": "h"})
ONLY_THE_CONNECTION: list[tuple[Any, str, Callable[[Bench], None]]] = [
    (upstream_connection, "read_lacks", lambda bench: a_link(bench, lacks())),
    (UnavailableMessages, "reduce", lambda bench: a_link(bench, lacks())),
    (LinkAccess, "ask", a_link),
    (UpstreamConnection, "_take_epoch", a_link),
    (ClientConnection, "_heartbeat", lambda bench: a_client(bench, BEAT)),
    (NativeCodec, "receive", a_client),
    (ClientLogon, "_let_in", a_client),
]  # fmt: skip


@pytest.mark.covers("Configuration", "a fault in the handler of a frame ends that connection")
@pytest.mark.parametrize("error", [KeyError, MemoryError, RecursionError])
@pytest.mark.parametrize(
    ("where", "name", "does"),
    ONLY_THE_CONNECTION,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_the_connection_ends(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    does: Callable[[Bench], None],
    error: type[BaseException],
) -> None:
    whole = getattr(where, name)
    is_of_good = name == "receive"

    def fault(*arguments: Any, **keywords: Any) -> Any:
        if is_of_good and arguments[0] is good.codec:
            return whole(*arguments, **keywords)
        raise error(SECRET_WORDS)

    (good,) = bench.server.parts.clients.sessions.values()
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError):  # the bench does not take it for nothing
        does(bench)
    assert bench.server.runtime.fault is None and not bench.server.parts.instance.is_half_done
    (told,) = events(bench.server, "connection_fault")
    assert SECRET_WORDS in told["text"] and "127.0.0.1" in told["peer"]
    assert "test_faults.py" in told["at"] and "services/" in told["at"]
    assert bench.server.status()["connection_faults"] == 1
    assert bench.server.parts.status.snapshot()["connection_faults"] == 1


IN_A_STEP: list[tuple[Any, str, Callable[[Bench], None]]] = [
    (UnavailableMessages, "upstream_lacks", lambda bench: a_link(bench, lacks())),
    (Publishers, "published", lambda bench: a_client(bench, a_record())),
    (Intake, "append", lambda bench: a_client(bench, a_record())),
    (InstanceMachine, "received_of", lambda bench: a_client(bench, a_record())),
]


@pytest.mark.covers("Configuration", "a fault in the handler of a frame ends that connection")
@pytest.mark.parametrize(
    ("where", "name", "does"), IN_A_STEP, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_fault_in_a_step_ends_the_instance(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    does: Callable[[Bench], None],
) -> None:
    monkeypatch.setattr(where, name, raises())
    with pytest.raises((AssertionError, TimeoutError)):
        does(bench)
    assert isinstance(bench.server.runtime.fault, UnfinishedStep)
    assert not events(bench.server, "connection_fault")
    monkeypatch.undo()


@pytest.mark.covers("Configuration", "a fault in the handler of a frame ends that connection")
def test_a_file_that_fails_ends_the_instance(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientConnection, "_heartbeat", raises(StorageError))
    with pytest.raises((AssertionError, TimeoutError)):
        a_client(bench, BEAT)
    assert isinstance(bench.server.runtime.fault, UnfinishedStep)


@pytest.mark.covers("Configuration", "a fault in the handler of a frame ends that connection")
def test_each_step_of_the_machine_is_marked() -> None:
    """A door of the machine that returns effects says that it changes, or its part does."""
    inside = {"upstream_batch", "upstream_lacks"}  # behind their checks, in their part
    for name, door in vars(InstanceMachine).items():
        if not inspect.isfunction(door) or name.startswith("_") or name in inside:
            continue
        if "Effect" in str(door.__annotations__.get("return", "")):
            assert "is_changing = True" in inspect.getsource(door), name
