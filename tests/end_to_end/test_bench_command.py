"""`raylay bench`, and what `raylay publish` and `subscribe` take, against a real instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Server
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands.bench import AckTimes, LoadPlan, LoadResult
from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition

pytestmark = pytest.mark.covers("Utilities", "Command-Line Basic Client: `raylay bench`")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(
        tmp_path_factory.mktemp("bench") / "solo",
        InstanceConfig(
            "solo",
            "g",
            first=True,
            topics=(TopicRule(".*", "json"),),
            queue_definitions=(
                QueueDefinition("work", "json", underlying="orders", lease_us=60_000_000),
            ),
        ),
    )
    yield made
    made.kill()


def raylay(server: Server, *arguments: str, input: str = "") -> Any:
    with ThreadPoolExecutor(1) as aside:
        command = (*arguments, "--server", server.address)
        return aside.submit(CliRunner().invoke, app, command, input=input).result()


def sides(done: Any) -> dict[str, dict[str, Any]]:
    assert done.exit_code == 0, (done.output, done.exception)
    return {each["side"]: each for each in map(json.loads, done.stdout.splitlines())}


def bodies(server: Server, topic: str, count: int, *more: str) -> list[str]:
    done = raylay(server, "subscribe", topic, "--bookmark", "0", "--count", str(count), *more)
    assert done.exit_code == 0, (done.output, done.exception)
    return [str(line) for line in done.stdout.splitlines()]


def test_a_load_of_publishes_is_acknowledged_and_timed(server: Server) -> None:
    found = sides(
        raylay(
            server, "bench", "pub", "loads", "--count", "3001", "--clients", "3", "--size", "400",
            "--json",
        )
    )["published"]  # fmt: skip
    assert (found["messages"], found["refused"]) == (3001, 0)
    assert found["messages_per_s"] > 0 and found["bytes_per_s"] > 100 * found["messages_per_s"]
    times = list(found["latency_ms"].values())
    assert list(found["latency_ms"]) == ["p50", "p95", "p99", "longest"]
    assert times[0] > 0 and times == sorted(times)
    there = [json.loads(each) for each in bodies(server, "loads", 3001)]
    assert sorted(each["id"] for each in there) == list(range(3001))
    assert {len(each) for each in bodies(server, "loads", 3001)} == {400}


def test_the_table_of_a_load_with_a_rate(server: Server) -> None:
    done = raylay(server, "bench", "pub", "slow", "--count", "50", "--rate", "500")
    assert done.exit_code == 0, done.output
    assert "p99 ms" in done.stdout and "published" in done.stdout
    found = sides(
        raylay(server, "bench", "pub", "slow", "--count", "50", "--rate", "500", "--json")
    )
    assert found["published"]["messages_per_s"] <= 650


def test_a_load_ends_after_its_time(server: Server) -> None:
    command = ("bench", "pub", "slow", "--rate", "20", "--seconds", "0.5", "--json")
    assert 0 < sides(raylay(server, *command))["published"]["messages"] < 30


def test_subscribers_count_and_time_a_load(server: Server) -> None:
    raylay(server, "bench", "pub", "followed", "--count", "500", "--size", "300")
    command = ("bench", "sub", "followed", "--bookmark", "0", "--count", "500", "--clients", "2")
    found = sides(raylay(server, *command, "--json"))["received"]
    assert found["messages"] == 1000
    assert found["latency_ms"]["p50"] > 0
    size_bytes = found["bytes_per_s"] / found["messages_per_s"]
    assert size_bytes == pytest.approx(300, rel=0.01), "bodies count, as on the publishers' side"


def test_a_queue_gives_back_only_what_the_load_has_published(server: Server) -> None:
    raylay(server, "publish", "orders", '{"order": "of somebody"}')
    command = ("bench", "queue", "work", "--topic", "orders", "--count", "400", "--consumers", "2")
    found = sides(raylay(server, *command, "--json"))
    assert (found["published"]["messages"], found["consumed"]["messages"]) == (400, 400)
    assert (
        json.loads(raylay(server, "queue", "status", "work", "--json").stdout)["queue_depth"] == 1
    )


def test_what_is_refused_is_told_once(server: Server) -> None:
    done = raylay(server, "bench", "queue", "typo", "--count", "10", "--seconds", "10")
    assert done.exception.reason == "no_queue" and "'typo' is no queue" in str(done.exception)
    done = raylay(server, "bench", "pub", "loads", "--type", "unknown", "--count", "10")
    assert "10 were delivered, and are in no transaction log" in done.output


def test_a_file_a_count_and_an_expiry(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_bytes(b'{"id":1}\r\n{"id":2}\n{"id":3}')
    done = raylay(server, "publish", "filed", "--file", str(file))
    assert done.exit_code == 0 and "3 persisted" in done.stdout
    assert bodies(server, "filed", 3) == ['{"id":1}', '{"id":2}', '{"id":3}']
    done = raylay(server, "publish", "counted", '{"id":{n}}', "--count", "3", "--expiry", "90s")
    assert done.exit_code == 0 and "3 persisted" in done.stdout
    assert bodies(server, "counted", 3, "--rate", "1000", "--fully-durable") == [
        '{"id":1}',
        '{"id":2}',
        '{"id":3}',
    ]
    raylay(server, "publish", "once", '{"id":{n}}')
    assert bodies(server, "once", 1) == ['{"id":{n}}'], "one message stays as it is"


def test_a_durable_subscriber_goes_on_where_it_was(server: Server) -> None:
    raylay(server, "publish", "kept", '{"id":{n}}', "--count", "5")

    def printed(count: int) -> list[str]:
        command = ("subscribe", "kept", "--durable", "billing", "--count", str(count))
        return raylay(server, *command).stdout.splitlines()

    assert printed(2) == ['{"id":1}', '{"id":2}']
    listed = raylay(server, "reader", "list").stdout
    assert "billing  kept  solo: 3 messages behind, " in listed, listed
    raylay(server, "publish", "not kept", '{"id":{n}}', "--count", "7")
    assert printed(3) == ['{"id":3}', '{"id":4}', '{"id":5}']
    raylay(server, "publish", "not kept", '{"id":{n}}', "--count", "7")
    listed = raylay(server, "reader", "list").stdout
    assert "billing  kept  solo: 0 messages behind, " in listed, listed
    done = raylay(server, "subscribe", "other", "--durable", "billing")
    assert "'billing' is of kept, and not of other" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("subscribe", "a", "--durable", "n", "--sow"), "cannot be combined with --sow"),
        (("publish", "a", "{}", "--file", "b"), "not both"),
        (("publish", "a", "--file", "missing"), "missing cannot be read"),
        (("publish", "a", "--count", "2"), "give it behind the topic"),
        (("publish", "a", "{}", "--expiry", "soon"), "--expiry: expected an interval"),
        (("publish", "a", "{}", "--expiry", "10ms"), "whole seconds"),
        (("publish", "a", "{}", "--expiry", "1000000d"), "whole seconds"),
        (("subscribe", "a", "--rate", "5"), "give --bookmark"),
        (("subscribe", "a", "--fully-durable"), "give --bookmark"),
    ],
)
def test_bad_input_publishes_nothing(arguments: tuple[str, ...], why: str, server: Server) -> None:
    done = raylay(server, *arguments)
    told = " ".join(f"{done.output} {done.exception}".replace("│", " ").split())
    assert done.exit_code and why in told, told


def test_the_times_of_acknowledgments() -> None:
    result = LoadResult("published", 4)
    times = AckTimes(result, every=2)
    for sequence in range(1, 5):
        times.sent(sequence, 10, float(sequence))
    times.acknowledged(3, 5.0)
    assert (result.messages, result.size_bytes, result.times_ms) == (3, 30, [3000.0])
    times.acknowledged(9, 9.0)
    assert (result.messages, result.times_ms) == (4, [3000.0, 5000.0])
    assert result.seconds() == 8.0


def test_the_messages_of_a_plan() -> None:
    plan = LoadPlan("t", count=7, clients=3, run="a", size=80)
    assert [list(each) for each in plan.shares()] == [[0, 1], [2, 3], [4, 5, 6]]
    assert len(LoadPlan("t", count=2, clients=9).shares()) == 2
    assert len(plan.message(3, 17)) == 80
    assert json.loads(plan.message(3, 17))["sent_us"] == 17
    assert json.loads(LoadPlan("t", size=1).message(3, 17))["id"] == 3
    assert LoadPlan("t", body='{"k":{n}}').message(3, 17) == b'{"k":3}'
