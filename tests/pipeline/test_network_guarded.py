"""Reads over the network at an instance with TLS, users and permissions: the rows are those that
the user may read, and what is hidden neither stops a stream nor is told."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from support.pipeline_cases import RunningInstance
from support.tls_files import Files, tls_files

from raylay.services.client import SyncClient
from raylay.services.config.instance import TransportConfig
from raylay.services.errors import CommandFailed, LogonRefused
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.network.source import (
    NetworkBatchReader,
    NetworkOptions,
    NetworkStreamReader,
)
from raylay.services.security.modules import ModuleConfig
from raylay.services.telemetry.logs import LogOptions

pytestmark = pytest.mark.covers("Data pipeline", "the rows that a user may read over the network")

DESK, LAKE, OTHER = "desk", "lake", "other"
PASSWORD = "words"
PERMISSIONS = {
    DESK: {"logon": True, "topic": [{"topic": ".*", "read": True, "write": True}]},
    LAKE: {
        "logon": True,
        "topic": [
            {"topic": "open/.*", "read": True},
            {"topic": "part/.*", "read": "/n < 10"},
        ],
    },
    OTHER: {"logon": True, "topic": [{"topic": "open/.*", "read": True}]},
}
SCHEMA = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])
AT_ONCE_S = 10.0
"""Above what a refusal takes, far below `connect_wait_s`."""


class Guarded:
    """An instance that knows three users, and asks for them over TLS."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.files = files
        hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        passwords, permissions = directory / "passwords", directory / "permissions.json"
        passwords.write_text(
            "".join(f"{user}:{hasher.hash(PASSWORD)}\n" for user in PERMISSIONS), encoding="ascii"
        )
        permissions.write_text(json.dumps(PERMISSIONS), encoding="ascii")
        self.instance = RunningInstance(
            directory / "Chicago-1",
            log=LogOptions(target="none"),
            client_transports=(TransportConfig("client", tls=files.serving()),),
            authentication=ModuleConfig("passwords", {"File": str(passwords)}),
            entitlement=ModuleConfig("permissions", {"File": str(permissions)}),
        )

    def client(self, user: str) -> SyncClient:
        """Returns a client of a user."""
        return SyncClient(
            f"{user}-program",
            [self.instance.address],
            tls=self.files.dialling(),
            user_id=user,
            password=PASSWORD,
        )

    def publish(self, topic: str, numbers: range) -> None:
        """Publishes JSON bodies with these numbers."""
        with self.client(DESK) as client:
            for number in numbers:
                client.publish(topic, b'{"n": %d}' % number)
            client.flush()

    def options(self, **more: Any) -> NetworkOptions:
        """Returns options of a read; the environment says who reads."""
        given = {"servers": self.instance.address, "ca_file": self.files.ours.file}
        return NetworkOptions.of(given | {name: str(value) for name, value in more.items()})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"), tls_files())
    yield made
    made.instance.stop()


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reads of the test are those of the user `lake`."""
    monkeypatch.setenv("RAYLAY_USER", LAKE)
    monkeypatch.setenv("RAYLAY_PASSWORD", PASSWORD)


def rows(reader: Any, *between: Any) -> set[tuple[str, int]]:
    found = [
        (row["topic"], int(json.loads(row["body"])["n"]))
        for partition in reader.partitions(*between)
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
        for row in batch.to_pylist()
    ]
    assert len(found) == len(set(found)), "a message came twice"
    return set(found)


@pytest.mark.usefixtures("lake")
def test_a_read_of_everything_has_what_the_user_may_read(guarded: Guarded) -> None:
    for topic in ("open/a", "part/a", "secret/a"):
        guarded.publish(topic, range(20))
    found = rows(NetworkBatchReader(guarded.options(topic=".*/a"), SCHEMA))
    assert found == {("open/a", n) for n in range(20)} | {("part/a", n) for n in range(10)}


@pytest.mark.usefixtures("lake")
def test_hidden_messages_do_not_stop_a_stream(guarded: Guarded) -> None:
    reader = NetworkStreamReader(
        guarded.options(topic=".*/b", starting="0|1|", read_wait_s=5), SCHEMA
    )
    offset = reader.initialOffset()
    seen: set[tuple[str, int]] = set()
    for topic, numbers in (
        ("secret/b", range(30)),
        ("open/b", range(5)),
        ("part/b", range(5, 15)),
        ("secret/b", range(30, 60)),
        ("open/b", range(5, 8)),
    ):
        guarded.publish(topic, numbers)
        end = reader.latestOffset(offset, ReadAllAvailable())
        if end == offset:  # The first look of a stream from now may be that of its begin.
            end = reader.latestOffset(offset, ReadAllAvailable())
        assert end["messages"] - offset["messages"] == len(numbers)
        seen |= rows(reader, offset, end)
        offset = end
    reader.stop()
    assert seen == {("open/b", n) for n in range(8)} | {("part/b", n) for n in range(5, 10)}


@pytest.mark.usefixtures("lake")
def test_a_topic_that_the_user_may_not_read(guarded: Guarded) -> None:
    guarded.publish("secret/c", range(3))
    with pytest.raises(CommandFailed, match="secret/c"):
        NetworkBatchReader(guarded.options(topic="secret/c"), SCHEMA).partitions()


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_user_that_is_refused_is_told_at_once(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("RAYLAY_USER", LAKE)
    monkeypatch.setenv("RAYLAY_PASSWORD", password)
    started_s = time.monotonic()
    with pytest.raises(LogonRefused, match="password"):
        NetworkBatchReader(guarded.options(topic="open/.*"), SCHEMA).partitions()
    assert time.monotonic() - started_s < AT_ONCE_S


@pytest.mark.usefixtures("lake")
def test_a_named_reader_is_its_users_own(guarded: Guarded) -> None:
    guarded.publish("open/d", range(10))
    reader = NetworkStreamReader(guarded.options(topic="open/.*", reader="own"), SCHEMA)
    start = reader.initialOffset()
    with guarded.client(OTHER) as client:
        with pytest.raises(CommandFailed, match="own"):
            client.readers.tell("own", "open/.*", PublisherRanges())
        with pytest.raises(CommandFailed, match="own"):
            client.readers.drop("own")
    end = reader.latestOffset(start, ReadAllAvailable())
    rows(reader, start, end)
    reader.commit(end)
    with guarded.client(LAKE) as client:
        (known,) = [each for each in client.readers.known() if each["name"] == "own"]
        assert known["behind"] == 0
        client.readers.drop("own")
        assert not [each for each in client.readers.known() if each["name"] == "own"]
    reader.stop()
