"""Named readers hold the retention of a real instance, over restarts, until they go on."""

from __future__ import annotations

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, free_ports, pair, single
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.client import Client as AsyncClient
from raylay.services.client import SyncClient
from raylay.services.commands import messages
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.errors import CommandFailed
from raylay.services.messages.ranges import PublisherRanges

pytestmark = pytest.mark.covers("Journal", "named readers that hold retention")

SEGMENT_BYTES = 256 * 1024
MESSAGES = 3_000


def say(client: Client, have: PublisherRanges | None, **more: Any) -> dict[str, Any]:
    body = b"" if have is None else msgpack.packb(have.to_wire())
    client.send({"c": "reader", "name": "lake", "t": "orders", "cid": "r"} | more, body)
    return client.ack(cid="r").header


def missing(server: Server, publisher: int) -> int:
    """Returns how many messages retention has removed."""
    client = Client(server.address, "late")
    have = PublisherRanges()
    have.add(publisher, 1, 1)
    command = {
        "c": "subscribe",
        "sub": "s",
        "t": "orders",
        "bm": "0",
        "cid": "s",
        "o": {"have": have.to_wire()},
    }
    client.send(command)
    # Retention goes on removing, and a subscription that it overtakes is made again.
    while (found := client.ack(cid="s").header)["status"] == "failure":
        assert found["reason"] == "overtaken", str(found)
        client.send(command)
    client.close()
    return int(found.get("missing") or 0)


def wait_until_removed(server: Server, txid: int) -> None:
    """Waits until no segment begins at or before a transaction id. It looks at the files: a
    subscription from the beginning would keep the oldest ones open."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        first_txid = min(
            int(path.name.removeprefix("journal-").partition(".")[0], 16)
            for path in (server.directory / "journal").glob("journal-*")
            if not path.name.endswith("-lock")
        )
        if first_txid > txid:
            return
        assert time.monotonic() < deadline_s, server.log[-2_000:]
        time.sleep(0.1)


def started(servers: Servers, path: Path) -> Server:
    retention = RetentionConfig(size_bytes=SEGMENT_BYTES)
    journal = JournalConfig(segment_bytes=SEGMENT_BYTES, retention=retention)
    return single(servers, path, first=True, journal=journal)


@pytest.mark.slow
def test_a_named_reader_holds_retention_over_a_restart(servers: Servers, tmp_path: Path) -> None:
    server = started(servers, tmp_path)
    client = Client(server.address, "desk")
    have = PublisherRanges()
    have.add(client.answer["publisher"], 1, 1)
    assert say(client, have)["status"] == "success"
    client.publish_steadily(1, MESSAGES)
    server.wait_for("reader 'lake' needs the messages from transaction id")
    server.kill()
    server.start()
    client = Client(server.address, "desk")
    client.publish_steadily(MESSAGES + 1, MESSAGES)
    server.wait_for("reader 'lake' needs the messages from transaction id", 2)
    assert missing(server, client.answer["publisher"]) == 0

    client.send({"c": "reader", "cid": "q"})
    (found,) = msgpack.unpackb(client.ack(cid="q").body)
    assert (found["name"], found["topic"], found["expires_s"]) == ("lake", "orders", 7 * 86_400)
    assert found["behind"] >= MESSAGES - 1

    # What it has read goes; what it has not, stays.
    have.add(client.answer["publisher"], 1, MESSAGES)
    assert say(client, have)["status"] == "success"
    wait_until_removed(server, 1)
    assert 0 < missing(server, client.answer["publisher"]) <= MESSAGES
    assert say(client, None, release=True)["status"] == "success"
    client.send({"c": "reader", "cid": "q"})
    assert msgpack.unpackb(client.ack(cid="q").body) == []
    wait_until_removed(server, MESSAGES + 10)
    assert missing(server, client.answer["publisher"]) > MESSAGES


@pytest.mark.slow
def test_a_reader_that_says_nothing_expires(servers: Servers, tmp_path: Path) -> None:
    server = started(servers, tmp_path)
    client = Client(server.address, "desk")
    assert say(client, PublisherRanges(), expires_s=1)["status"] == "success"
    client.publish_steadily(1, MESSAGES)
    server.wait_for("reader_expired")
    wait_until_removed(server, 1)
    assert missing(server, client.answer["publisher"])


def test_clients_name_ask_for_and_drop_readers(servers: Servers, tmp_path: Path) -> None:
    server = started(servers, tmp_path)

    async def run() -> None:
        async with AsyncClient("desk", [server.address]) as client:
            await client.readers.tell("lake", "orders", PublisherRanges(), expires_s=9)
            (found,) = await client.readers.known()
            assert (found["name"], found["expires_s"], found["behind"]) == ("lake", 9, 0)
            await client.readers.drop("lake")
            await client.readers.drop("lake")
            assert await client.readers.known() == []
            with pytest.raises(CommandFailed, match="printable"):
                await client.readers.tell("a\nb", "orders", PublisherRanges())

    asyncio.run(run())


def test_the_shell_lists_and_drops_readers(servers: Servers, tmp_path: Path) -> None:
    server = started(servers, tmp_path)

    def raylay(*arguments: str) -> str:
        with ThreadPoolExecutor(1) as aside:
            command = ("reader", *arguments, "--server", server.address)
            done = aside.submit(CliRunner().invoke, app, command).result()
        assert done.exit_code == 0, (done.output, done.exception)
        return str(done.stdout)

    def refused(*arguments: str) -> str:
        with ThreadPoolExecutor(1) as aside:
            command = ("reader", *arguments, "--server", server.address)
            done = aside.submit(CliRunner().invoke, app, command).result()
        assert done.exit_code == 1 and not done.stdout
        return str(done.exception)

    with SyncClient("desk", [server.address]) as client:
        for number in range(3):
            client.publish("orders", b'{"n": %d}' % number)
            client.publish("log", b"of another topic")
        client.flush()
        client.readers.tell("lake", "orders", PublisherRanges(), expires_s=90)
    assert re.fullmatch(
        r"lake  orders  solo: 3 messages behind, heard of \d s ago, expires after 90 s\n",
        raylay("list"),
    )
    (found,) = json.loads(raylay("list", "--json"))
    assert (found["name"], found["topic"]) == ("lake", "orders")
    (place,) = found["instances"]
    assert (place["instance"], place["behind"], place["at_most"]) == ("solo", 3, False)
    where = server.config.name
    assert refused("drop", "lak") == f"{where}: no reader 'lak': did you mean lake?"
    assert refused("drop", "billing") == f"{where}: no reader 'billing': there are lake"
    assert raylay("drop", "lake") == f"{server.config.name} keeps nothing for reader lake\n"
    assert raylay("list") == f"{server.config.name} has no named readers\n"
    assert json.loads(raylay("list", "--json")) == []
    assert refused("drop", "lake") == f"{where}: no reader 'lake': there are none"


def test_the_shell_lists_the_readers_of_every_instance(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "EACH_SERVER_WAIT_S", 1.0)
    both = pair(servers, tmp_path)
    gone = f"127.0.0.1:{free_ports(1)[0]}"
    for server, names in zip(both, (("lake", "billing"), ("lake",)), strict=True):
        with SyncClient(f"desk-{server.config.name}", [server.address]) as client:
            for name in names:
                client.readers.tell(name, "orders", PublisherRanges(), expires_s=90)

    def raylay(*arguments: str) -> Any:
        addresses = (*(server.address for server in both), gone)
        given = [part for each in addresses for part in ("--server", each)]
        with ThreadPoolExecutor(1) as aside:
            command = ("reader", "list", *arguments, *given)
            return aside.submit(CliRunner().invoke, app, command).result()

    done = raylay()
    assert done.exit_code == 0, done.exception
    assert f"raylay: {gone} does not answer: " in done.stderr
    of_billing, of_lake = done.stdout.splitlines()
    assert of_billing.startswith("billing  orders  A: 0 messages behind, ")
    assert of_lake.startswith("lake  orders  A, B: 0 messages behind, ")
    found = json.loads(raylay("--json").stdout)
    assert [
        (each["name"], [place["instance"] for place in each["instances"]]) for each in found
    ] == [("billing", ["A"]), ("lake", ["A", "B"])]
