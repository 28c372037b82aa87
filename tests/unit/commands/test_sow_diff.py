"""`raylay sow diff`: which topics, what is looked at again, what is told, and the exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from support.sow_given import record

from raylay.services.commands import sow_diff
from raylay.services.commands.sow_diff import (
    TopicDiff,
    as_object,
    compare_topic,
    diff_command,
    lines,
)
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import record_of
from raylay.services.sow.query.comparison import RecordDifference, held

pytestmark = pytest.mark.covers("SOW", "`raylay sow diff`")

TOPIC = ("orders", "json")
FILE = """fabric: f
regions: {A: 2}
sow_topics:
  - {name: orders, message_type: json, keys: [/id]}
  - {name: /AMPS/SOWStats, message_type: json, keys: [/topic]}
instances: {B: {sow_topics: [{name: ticks, message_type: json, keys: [/id]}]}}
"""


class Instance:
    """Has other rows at each look."""

    def __init__(self, *looks: dict[bytes, int]) -> None:
        self.looks = list(looks)
        self.asked: list[list[bytes] | None] = []

    async def ask(self, topic: str, kind: str, keys: list[bytes] | None) -> AsyncIterator[Any]:
        assert (topic, kind) == TOPIC
        self.asked.append(keys)
        rows = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        for key, sequence in rows.items():
            if keys is None or key in keys:
                yield SimpleNamespace(record=record(sequence, b"%d" % sequence, key=key))


def compared(here: Instance, there: Instance, wait_s: float = 0.01) -> TopicDiff:
    return asyncio.run(compare_topic(here.ask, there.ask, TOPIC, wait_s))


def test_equal_topics_are_looked_at_once() -> None:
    here, there = Instance({b"a": 1, b"b": 2}), Instance({b"b": 2, b"a": 1})
    # Nothing is waited for where nothing differs.
    found = asyncio.run(asyncio.wait_for(compare_topic(here.ask, there.ask, TOPIC, 3600.0), 60))
    assert (found.counts, found.differences, found.is_equal) == ((2, 2), (), True)
    assert here.asked == there.asked == [None]


def test_only_what_differs_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Instance({b"a": 1, b"b": 2, b"c": 3})
    there = Instance({b"a": 1}, {b"b": 2})
    monkeypatch.setattr(sow_diff, "KEYS_ASKED_ONCE", 1)
    found = compared(here, there)
    assert here.asked[:3] == there.asked[:3] == [None, [b"b"], [b"c"]]
    assert [(each.key, each.what) for each in found.differences] == [(b"c", "missing there")]
    assert not found.is_equal


def test_without_waiting_there_is_one_look() -> None:
    here, there = Instance({b"a": 1}), Instance({b"a": 2})
    assert not compared(here, there, 0).is_equal
    assert here.asked == [None]


def test_what_changes_at_each_look_is_told_and_does_not_count() -> None:
    changing = RecordDifference(b"a", held("orders", 1, 2, b""), held("orders", 1, 1, b""), True)
    found = TopicDiff(TOPIC, (1, 1), (changing,))
    assert found.is_equal
    assert lines(found, "A-1", "A-2", 20) == [
        "orders (json): no key differs; A-1 has 1 records, A-2 1",
        "  1 keys changed at each look: run it again when there is less traffic",
    ]


def test_what_is_told() -> None:
    one, other = held("orders", 7, 2, b"x"), held("orders/eu", 7, 1, b"y")
    found = TopicDiff(
        TOPIC, (3, 2), (RecordDifference(b"a", one, other), RecordDifference(b"b", None, other))
    )
    assert lines(found, "A-1", "A-2", 20) == [
        "orders (json): 2 keys differ; A-1 has 3 records, A-2 2",
        f"  a: A-1 {one}; A-2 {other}",
        f"  b of orders/eu: A-1 has nothing; A-2 {other}",
    ]
    assert lines(found, "A-1", "A-2", 1)[2:] == ["  and 1 more: --show 0 shows all"]
    assert len(lines(found, "A-1", "A-2", 0)) == 3
    assert lines(TopicDiff(TOPIC, only="B"), "A-1", "B", 0) == [
        "orders (json): only B has this SOW topic"
    ]
    told = json.loads(json.dumps(as_object(found, "A-1", "A-2")))
    assert told["records"] == {"A-1": 3, "A-2": 2}
    assert told["differences"][0]["A-1"]["sequence"] == 2
    assert [each["what"] for each in told["differences"]] == ["other message", "missing here"]


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(FILE)
    record_of(settings, tmp_path).save()
    entry = SimpleNamespace(directory=tmp_path, name="f")
    monkeypatch.setattr(sow_diff, "running", lambda name: entry)


@pytest.mark.parametrize(
    ("names", "topic", "says"),
    [
        (("A-1", "A-1"), "", "A-1 is given twice: name two instances"),
        (("A-1", "C"), "", "fabric f has no instance C"),
        (("A-1", "A-2"), "ticks", "A-1 and A-2 have no SOW topic named ticks; there are orders"),
    ],
)
def test_what_cannot_be_compared(
    names: tuple[str, str], topic: str, says: str, fabric: None
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        diff_command(*names, topic=topic, wait_s=0, show=20, fabric="", as_json=False)


@pytest.mark.parametrize(
    ("names", "different", "code"),
    [(("A-1", "A-2"), False, 0), (("A-1", "A-2"), True, 1), (("A-1", "B"), False, 1)],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code(
    names: tuple[str, str],
    different: bool,
    code: int,
    as_json: bool,
    fabric: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def compare(two: Any, topics: Any, wait_s: float) -> list[TopicDiff]:
        assert tuple(options["servers"][0].instance for options in two) == names
        difference = RecordDifference(b"a", None, held("orders", 1, 1, b""))
        return [
            TopicDiff(topic, (1, 1), (difference,) if different else (), only)
            for topic, only in topics
        ]

    monkeypatch.setattr(sow_diff, "_compare", compare)
    given: dict[str, Any] = {"topic": "", "wait_s": 0, "show": 20, "fabric": "", "as_json": as_json}
    if code:
        with pytest.raises(typer.Exit) as caught:
            diff_command(*names, **given)
        assert caught.value.exit_code == code
    else:
        diff_command(*names, **given)
    told = capsys.readouterr().out.splitlines()
    topics = [json.loads(line)["topic"] if as_json else line.split()[0] for line in told]
    assert topics[0] == "orders" and (names[1] != "B" or topics[1:] == ["ticks"])


def test_its_clients_say_who_they_are_and_speak_the_fabrics_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(f"{FILE}client: {{tls: {{ca_file: ca.pem}}}}\n")
    record_of(settings, tmp_path).save()
    entry = SimpleNamespace(directory=tmp_path, name="f")
    monkeypatch.setattr(sow_diff, "running", lambda name: entry)
    monkeypatch.setenv("RAYLAY_USER", "amy")
    monkeypatch.setenv("RAYLAY_PASSWORD", "correct")
    made: list[dict[str, Any]] = []

    class Stub:
        def __init__(self, **options: Any) -> None:
            made.append(options)

        async def __aenter__(self) -> Stub:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def sow(self, topic: str, **_: Any) -> AsyncIterator[Any]:
            for row in ():
                yield row

    monkeypatch.setattr("raylay.services.client.Client", Stub)
    diff_command("A-1", "A-2", topic="orders", wait_s=0, show=20, fabric="", as_json=False)
    for options, instance in zip(made, ("A-1", "A-2"), strict=True):
        assert [server.instance for server in options["servers"]] == [instance]
        assert (options["user_id"], options["password"]) == ("amy", "correct")
        assert options["tls"].ca_file == str(tmp_path / "ca.pem")
        assert options["group"] == options["servers"][0].group
    assert made[0]["name"] != made[1]["name"]
