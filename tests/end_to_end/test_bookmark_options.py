"""How a replay is delivered: rates, pause and resume, live, fully durable; on real instances."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Client, Server, Servers, pair, single, subscribe

from raylay.services.client import (
    EPOCH,
    Disconnected,
    LmdbBookmarkStore,
    MemoryBookmarkStore,
    Merged,
    SyncClient,
)
from raylay.services.client import Client as AsyncClient
from raylay.services.config.journal import JournalConfig
from raylay.services.errors import CommandFailed, LocalProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, iterate_records, publisher_id
from raylay.services.protocol.frames import Frame
from raylay.services.replication.downgrade import DowngradePolicy


def command(client: Client, cid: str, sub: Any, **options: Any) -> Frame:
    """A pause or a resume of what there is."""
    client.send({"c": "subscribe", "cid": cid, "sub": sub, "a": "processed", "o": options})
    return client.ack(cid=cid)


def start(client: Client, name: str, topic: str, bookmark: str = "0", **options: Any) -> Frame:
    client.send(
        {
            "c": "subscribe",
            "sub": name,
            "t": topic,
            "bm": bookmark,
            "cid": name,
            "a": "processed,completed,persisted",
            "o": options,
        }
    )
    return client.ack(cid=name, a="processed")


def received(client: Client, count: int) -> list[tuple[str, int]]:
    """(subscription, sequence) of the next `count` messages, as they come on the wire."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        frame = client.next(lambda frame: frame.header["c"] == "p")
        name = frame.header["sub"]
        found += [(name, record.sequence) for record in iterate_records(frame.body)]
    return found


def nothing_came(client: Client) -> None:
    """The server does a whole round for this client; no delivery comes before its answer."""
    for number in range(20):
        client.send({"c": "ping", "cid": f"round {number}"})
        while (frame := client.next()).header.get("cid") != f"round {number}":
            assert frame.header["c"] != "p", frame.header


def filled(servers: Servers, path: Path, count: int = 400) -> Server:
    """`orders` and `trades` in turns, a commit each or nearly."""
    server = single(servers, path)
    publisher = Client(server.address, "publisher")
    for number in range(1, count + 1):
        publisher.publish(range(number, number + 1), topic="orders" if number % 2 else "trades")
    publisher.persisted(count)
    publisher.close()
    return server


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An instance with ten messages, for those who change nothing."""
    made: Servers = []
    yield filled(made, tmp_path_factory.mktemp("ten"), 10)
    made[0].kill()


# -- rates -----------------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "`rate` in messages")
@pytest.mark.parametrize(("rate", "wanted_s"), [("400", 0.5), (400, 0.5), ("2KB", 0.0)])
def test_a_rate_is_an_upper_bound(
    servers: Servers, tmp_path: Path, rate: str | int, wanted_s: float
) -> None:
    server = filled(servers, tmp_path)
    client = Client(server.address, "subscriber")
    began_s = time.monotonic()
    start(client, "s", "orders", rate=rate)
    if wanted_s:
        assert [n for _, n in received(client, 200)] == list(range(1, 400, 2))
        assert wanted_s - 0.1 <= time.monotonic() - began_s
        assert client.ack(a="completed").header["cid"] == "s"
        return
    size_bytes = 0
    for _ in range(20):
        frame = client.next(lambda frame: frame.header["c"] == "p")
        size_bytes += len(frame.body)
        assert size_bytes <= 2_000 * (time.monotonic() - began_s + 0.1) + len(frame.body)


@pytest.mark.covers("Clients and protocol", "`rate` in messages")
@pytest.mark.slow
def test_a_multiple_of_the_original_speed(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    publisher = Client(server.address, "publisher")
    for number in range(1, 5):
        publisher.publish(range(number, number + 1))
        publisher.persisted(number)
        time.sleep(0.6 if number < 4 else 0)
    client = Client(server.address, "subscriber")
    times_us: dict[str, list[int]] = {}

    def replay(name: str, **options: Any) -> float:
        began_s = time.monotonic()
        start(client, name, "orders", **options)
        found: list[int] = []
        times_us[name] = []
        while len(found) < 4:
            header, body = client.next(lambda frame: frame.header["c"] == "p")
            found += [record.sequence for record in iterate_records(body)]
            times_us[name].append(header["ts"])
        assert found == [1, 2, 3, 4]
        return time.monotonic() - began_s

    # How far apart they were received: further than asked for, where the machine was busy.
    took_s = replay("as it was", rate="1X")
    original_s = (times_us["as it was"][-1] - times_us["as it was"][0]) / 1e6
    assert took_s >= original_s - 0.05 >= 1.75
    assert replay("twice", rate="2X") >= original_s / 2 - 0.05
    # A busy machine may take long for one of them, not for each of several.
    for name, options in {
        "no rate": {},
        "in half the time": {"rate": "2X"},
        "no long pauses": {"rate": "1X", "rate_max_gap": "20ms"},
    }.items():
        took = (replay(f"{name} {number}", **options) for number in range(20))
        assert any(each_s < original_s - 0.05 for each_s in took), name


@pytest.mark.covers("Clients and protocol", "`live`: before the disk")
@pytest.mark.parametrize(
    ("bookmark", "options", "says"),
    [
        ("0", {"rate": "fast"}, "500KB"),
        ("0", {"rate": True}, "500KB"),
        ("0", {"rate": 0}, "above zero"),
        ("0", {"rate": "500", "rate_max_gap": "10s"}, "like 2X"),
        ("0", {"rate_max_gap": "10s"}, "there is none"),
        ("0", {"live": True, "rate": "500"}, "rate holds them back"),
        ("0", {"live": True, "pause": True}, "pause holds them back"),
        ("0", {"live": True, "fully_durable": True}, "fully_durable holds them back"),
        ("", {"rate": "500"}, "give a bookmark"),
        ("", {"fully_durable": True}, "give a bookmark"),
        ("0", {"pause": True, "resume": True}, "takes no other option"),
    ],
)
def test_options_that_cannot_be_are_refused_and_change_nothing(
    ten: Server, bookmark: str, options: dict[str, Any], says: str
) -> None:
    client = Client(ten.address, "subscriber")
    answer = subscribe(client, bookmark, **options).header
    assert (answer["status"], answer["reason"]) == ("failure", "bad_command")
    assert says in answer["text"], answer["text"]
    assert subscribe(client, "0").header["status"] == "success"
    assert client.receive(5) == ["m1", "m3", "m5", "m7", "m9"]
    client.close()


# -- pause and resume ------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "pause, resume; those resumed in one command")
@pytest.mark.covers("The replication chapters", "the order of an instance is that of its log")
def test_resumed_together_they_are_one_replay_in_the_order_of_the_log(
    servers: Servers, tmp_path: Path
) -> None:
    server = filled(servers, tmp_path)
    client = Client(server.address, "subscriber")
    for topic in ("orders", "trades"):
        assert start(client, topic, topic, pause=True).header["status"] == "success"
    nothing_came(client)
    assert command(client, "go", "orders,trades", resume=True).header["status"] == "success"
    wanted = [("orders" if n % 2 else "trades", n) for n in range(1, 401)]
    assert received(client, 400) == wanted
    # What is published from now on keeps the order as well.
    publisher = Client(server.address, "publisher")
    for number in range(401, 501):
        publisher.publish(range(number, number + 1), topic="orders" if number % 2 else "trades")
    assert received(client, 100) == [("orders" if n % 2 else "trades", n) for n in range(401, 501)]


@pytest.mark.covers("Clients and protocol", "pause, resume; those resumed in one command")
def test_a_pause_in_the_middle_loses_and_repeats_nothing(servers: Servers, tmp_path: Path) -> None:
    server = filled(servers, tmp_path)
    client = Client(server.address, "subscriber")
    start(client, "orders", "orders", rate="400")
    found = received(client, 20)
    client.send({"c": "subscribe", "cid": "p", "sub": "orders", "o": {"pause": True}})
    while (frame := client.next()).header.get("cid") != "p":
        if frame.header["c"] == "p":
            found += [("orders", record.sequence) for record in iterate_records(frame.body)]
    nothing_came(client)
    start(client, "trades", "trades", rate="400", pause=True)
    assert command(client, "go", ["orders", "trades"], resume=True).header["status"] == "success"
    rest = received(client, 400 - len(found))
    assert [n for who, n in found + rest if who == "orders"] == list(range(1, 400, 2))
    assert [n for who, n in rest if who == "trades"] == list(range(2, 401, 2))
    assert [n for _, n in rest] == sorted(n for _, n in rest)
    assert len(found) < 200


def test_pause_and_resume_of_what_cannot_be_change_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    server = filled(servers, tmp_path, 10)
    client = Client(server.address, "subscriber")
    start(client, "paused", "orders", pause=True)
    start(client, "running", "trades")
    start(client, "live", "orders", "0|1|", live=True)
    client.send({"c": "subscribe", "sub": "plain", "t": "orders", "cid": "plain", "a": "processed"})
    client.ack(cid="plain")
    for options, names, reason in (
        ({"resume": True}, "paused,nobody", "no_such_subscription"),
        ({"resume": True}, "paused,running", "bad_command"),
        ({"resume": True}, "paused,plain", "bad_command"),
        ({"pause": True}, "running,live", "bad_command"),
        ({"pause": True}, "", "bad_command"),
    ):
        answer = command(client, "x", names, **options).header
        assert (answer["status"], answer["reason"]) == ("failure", reason), names
    assert received(client, 5) == [("running", n) for n in (2, 4, 6, 8, 10)]
    nothing_came(client)
    Client(server.address, "publisher", low=11).publish(range(11, 13), topic="trades")
    assert received(client, 2) == [("running", 11), ("running", 12)], "it was not paused"
    assert command(client, "go", "paused", resume=True).header["status"] == "success"
    assert received(client, 5) == [("paused", n) for n in (1, 3, 5, 7, 9)]


# -- live ------------------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "`live`: before the disk")
@pytest.mark.slow
def test_live_delivers_before_the_disk_has_it(servers: Servers, tmp_path: Path) -> None:
    """With a commit every second, what is delivered sooner was not on disk."""
    server = single(
        servers, tmp_path, journal=JournalConfig(durability="interval", flush_interval_ms=1000)
    )
    publisher = Client(server.address, "publisher")
    publisher.publish(range(1, 11))
    publisher.persisted(10)
    live, default = (Client(server.address, name) for name in ("live", "default"))
    start(live, "s", "orders", live=True)
    start(default, "s", "orders")
    for client in (live, default):
        assert client.receive(10) == [f"m{n}" for n in range(1, 11)]
    # A commit may fall between by chance; not each time.
    sooner = 0
    for number in range(11, 16):
        publisher.publish(range(number, number + 1))
        assert live.receive(1) == [f"m{number}"]
        publisher.send({"c": "ping", "cid": f"{number}"})
        committed = False
        while (frame := publisher.next()).header.get("cid") != f"{number}":
            committed = committed or frame.header.get("a") == "persisted"
        sooner += not committed
        if not committed:
            publisher.persisted(number)
        assert default.receive(1) == [f"m{number}"]
    assert sooner, "every live delivery came behind its commit"
    for number in range(16, 200):
        publisher.publish(range(number, number + 1))
    assert live.receive(184) == default.receive(184) == [f"m{n}" for n in range(16, 200)]


@pytest.mark.covers("Clients and protocol", "`live`: before the disk")
def test_live_keeps_up_with_a_publisher_that_never_pauses(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    publisher = Client(server.address, "publisher")
    client = Client(server.address, "subscriber")
    for first in range(1, 20_001, 100):
        publisher.publish(range(first, first + 100))
        if first == 5_001:
            start(client, "s", "orders", live=True)
    numbers: list[int] = []
    total = PublisherRanges()
    while not total.covers(publisher_id("publisher"), [(1, 20_000)]):
        header, body = client.next()
        if header["c"] == "p":
            numbers += [record.sequence for record in iterate_records(body)]
        elif header.get("a") == "persisted":
            # What it names was delivered before it, and never more than once.
            named = PublisherRanges.from_wire(header["have"])
            assert all(last <= numbers[-1] for _, (_, last) in named.items())
            total.update(named)
    assert numbers == list(range(1, 20_001))


def test_live_gets_again_what_a_full_disk_refused(servers: Servers, tmp_path: Path) -> None:
    server = single(
        servers,
        tmp_path,
        storage_bytes_max=3 * 1024 * 1024,
        journal=JournalConfig(segment_bytes=1024 * 1024),
    )
    live = Client(server.address, "live")
    start(live, "s", "orders", live=True)
    publisher = Client(server.address, "publisher")
    builder = RecordBuilder(publisher.answer["publisher"], "orders", "json")
    number, reason = 0, ""
    while not reason and number < 100:
        number += 1
        publisher.send({"c": "pb", "n": 1}, builder.build(number, bytes(100_000), 1))
        reason = publisher.next(lambda frame: frame.header["c"] == "ack").header.get("reason", "")
    assert reason == "storage_full"
    assert [n for _, n in received(live, number)] == list(range(1, number + 1))
    # What was refused is not in the log: it is sent again, smaller, so that it fits.
    acked = False
    while not acked:
        again = Client(server.address, "publisher", low=number)
        again.publish(range(number, number + 1), text="again")
        answer = again.next(lambda frame: frame.header["c"] == "ack").header
        assert answer["status"] == "success" or answer["reason"] == "storage_full"
        acked = answer["status"] == "success"
    assert live.receive(1) == [f"again{number}"]
    total = PublisherRanges()
    while not total.covers(publisher_id("publisher"), [(number, number)]):
        total.update(PublisherRanges.from_wire(live.ack(a="persisted").header["have"]))


# -- fully durable ---------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "`fully_durable`")
@pytest.mark.covers("The replication chapters", "any instance takes publishes at any time")
def test_fully_durable_waits_for_a_sync_destination_that_is_down(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    publisher = Client(first.address, "publisher")
    publisher.publish(range(1, 101))
    publisher.persisted(100)
    sure, default = (Client(first.address, name) for name in ("sure", "default"))
    start(sure, "s", "orders", fully_durable=True)
    start(default, "s", "orders")
    for client in (sure, default):
        assert client.receive(100) == [f"m{n}" for n in range(1, 101)]
    second.kill()
    publisher.publish(range(101, 201))
    assert default.receive(100) == [f"m{n}" for n in range(101, 201)]
    nothing_came(sure)
    second.start()
    assert sure.receive(100) == [f"m{n}" for n in range(101, 201)]
    publisher.persisted(200)


@pytest.mark.covers("Clients and protocol", "`fully_durable`")
@pytest.mark.slow
def test_fully_durable_gets_history_while_a_destination_is_down_and_the_rest_by_a_downgrade(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path, DowngradePolicy(age_ms=5_000, by_evidence=False))
    publisher = Client(first.address, "publisher")
    publisher.publish(range(1, 101))
    publisher.persisted(100)
    second.kill()
    publisher.publish(range(101, 201))
    default = Client(first.address, "default")
    start(default, "s", "orders")
    assert default.receive(200) == [f"m{n}" for n in range(1, 201)]
    sure = Client(first.address, "sure")
    start(sure, "s", "orders", fully_durable=True)
    assert sure.receive(100) == [f"m{n}" for n in range(1, 101)]
    assert not first.events("downgraded"), "too slow a machine for this test's downgrade age"
    nothing_came(sure)
    assert sure.receive(100) == [f"m{n}" for n in range(101, 201)]
    first.wait_for("downgraded")


# -- the client library ----------------------------------------------------------------------------
def run(work: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(main())


async def some(merged: Any, count: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    async for message in merged:
        found.append((message.subscription_id, message.sequence))
        if len(found) == count:
            break
    return found


@pytest.mark.slow
@pytest.mark.covers("Clients and protocol", "pause, resume; those resumed in one command")
def test_a_combined_replay_goes_on_at_another_instance_where_it_was(
    servers: Servers, tmp_path: Path
) -> None:
    """Paused ones stay paused, those resumed together stay one replay, nothing comes twice."""
    first, second = pair(servers, tmp_path)
    publisher = Client(first.address, "publisher")
    for number in range(1, 401):
        publisher.publish(range(number, number + 1), topic="orders" if number % 2 else "trades")
    publisher.persisted(400)

    async def work() -> None:
        lost = asyncio.Event()

        def on_event(event: Any) -> None:
            if isinstance(event, Disconnected):
                lost.set()

        async with AsyncClient(
            "desk",
            [first.address, second.address],
            failover="any",
            on_event=on_event,
            bookmark_store=MemoryBookmarkStore(),
        ) as client:
            options: dict[str, Any] = {"bookmark": EPOCH, "rate": "300", "pause": True}
            orders = await client.subscribe("orders", **options)
            trades = await client.subscribe("trades", **options)
            idle = await client.subscribe("orders", subscription_id="idle", **options)
            assert await client.subscribe("orders", bookmark=EPOCH, live=True, subscription_id="l")
            await client.resume(orders, trades)
            merged = Merged(orders, trades)
            found = await some(merged, 30)
            first.kill()
            await lost.wait()
            found += await some(merged, 370)
            assert client.instance == "B"
            assert [n for _, n in found] == list(range(1, 401))
            assert {who for who, n in found if n % 2} == {orders.id}
            assert {who for who, n in found if not n % 2} == {trades.id}
            assert idle.queued_messages == 0
            await client.resume(idle)
            assert [n for _, n in await some(idle, 200)] == list(range(1, 400, 2))

    run(work())


def test_the_client_says_what_cannot_be_paused(servers: Servers, tmp_path: Path) -> None:
    server = filled(servers, tmp_path, 10)

    async def work() -> None:
        async with AsyncClient("desk", [server.address]) as client:
            plain = await client.subscribe("orders")
            live = await client.subscribe("orders", bookmark=EPOCH, live=True)
            replay = await client.subscribe("orders", bookmark=EPOCH)
            for wrong in (plain, live):
                with pytest.raises(LocalProtocolError, match="only a replay"):
                    await client.pause(replay, wrong)
            with pytest.raises(LocalProtocolError, match="not paused"):
                await client.resume(replay)
            with pytest.raises(CommandFailed, match="holds them back"):
                await client.subscribe("orders", bookmark=EPOCH, live=True, rate="5")
            replay.unsubscribe()
            with pytest.raises(LocalProtocolError, match="has ended"):
                await client.pause(replay)

    run(work())


def test_the_synchronous_face_and_a_restart_in_pause(servers: Servers, tmp_path: Path) -> None:
    server = filled(servers, tmp_path, 100)
    path = tmp_path / "bookmarks"
    seen: list[int] = []
    options: dict[str, Any] = {"bookmark": EPOCH, "pause": True, "fully_durable": True}
    for wanted in (30, 70):
        store = LmdbBookmarkStore(path)
        with SyncClient("desk", [server.address], bookmark_store=store) as client:
            orders = client.subscribe("orders", **options)
            trades = client.subscribe("trades", **options)
            client.resume(orders, trades)
            for message in client.merged(orders, trades):
                seen.append(message.sequence)
                if len(seen) == wanted if wanted == 30 else len(seen) >= 100:
                    break
            client.pause(orders, trades)
            with pytest.raises(LocalProtocolError):
                client.pause(client.merged(orders, trades))
        store.close()
    assert set(seen) == set(range(1, 101))


@pytest.mark.covers("Clients and protocol", "exact resume across instances and restarts")
@pytest.mark.covers("The replication chapters", "subscriptions resume exactly where they were")
def test_an_exact_resume_across_instances_and_restarts(servers: Servers, tmp_path: Path) -> None:
    """A new client each time, at the other instance, one of them killed or restarted meanwhile."""
    first, second = pair(servers, tmp_path)
    publisher = Client(first.address, "publisher")
    sent = 0

    def publish(count: int) -> None:
        nonlocal sent
        for number in range(sent + 1, sent + count + 1):
            publisher.publish(range(number, number + 1), topic="orders" if number % 2 else "trades")
        sent += count
        publisher.persisted(sent)

    async def read(server: Server, count: int) -> list[int]:
        store = LmdbBookmarkStore(tmp_path / "bookmarks")
        async with AsyncClient("desk", [server.address], bookmark_store=store) as client:
            subscription = await client.subscribe(
                "orders", bookmark="0", fully_durable=True, persisted_ms=1
            )
            found = await some(subscription, count)
        store.close()
        return [number for _, number in found]

    publish(200)
    seen = asyncio.run(read(first, 40))
    publish(100)
    seen += asyncio.run(read(second, 60))
    second.kill()
    second.start()
    second.wait_for("link_caught_up", 2)
    seen += asyncio.run(read(second, 30))
    publish(100)
    assert first.stop() == 0
    first.start()
    seen += asyncio.run(read(first, 70))
    assert seen == list(range(1, 400, 2))


def test_the_examples_of_the_page_run(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    section = page.split("## How a replay is delivered\n")[1].split("\n## ")[0]
    examples = [part.split("```")[0] for part in section.split("```python\n")[1:]]
    printed = []
    for example in examples:
        assert "host-a:9007" in example
        done = subprocess.run(
            [sys.executable, "-c", example.replace("host-a:9007", server.address)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    wanted = [f"{kind}s {kind} {number}" for number in range(3) for kind in ("order", "trade")]
    assert printed == [wanted, ["b'1' b'2'", "b'1' b'2'", "b'1'"]]


@pytest.mark.slow
def test_the_example_of_typed_bodies_runs_and_its_types_hold(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    section = page.split("## Typed bodies\n")[1].split("\n## ")[0]
    example = section.split("```python\n")[1].split("```")[0]
    shown = section.split("```text\n")[1].split("```")[0]
    # The type checker knows what `json` returns.
    program = tmp_path / "typed.py"
    program.write_text(
        example.replace("host-a:9007", server.address).replace(
            "            if order.id == 3:",
            "            reveal_type(order)\n            if order.id == 3:",
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert 'Revealed type is "typed.Order"' in done.stdout, done.stdout
    assert "Success" in done.stdout, done.stdout
    program.write_text(example.replace("host-a:9007", server.address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
