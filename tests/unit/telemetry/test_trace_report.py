"""services/telemetry/trace_report.py: the files of several processes become one message's way."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import publisher_id
from raylay.services.telemetry.trace_files import PIECE_BYTES, TraceFiles, TraceSpan, tree
from raylay.services.telemetry.trace_report import print_trace, trace_command
from raylay.services.telemetry.tracing import (
    TracedMessage,
    TracingOptions,
    derived,
    new_context,
    start_tracing,
)

PUBLISHER = publisher_id("pub")
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def message(sequence: int) -> TracedMessage:
    return TracedMessage(new_context(), PUBLISHER, sequence, "flights")


def write_traces(directory: Path, *messages: TracedMessage, publish: bool = True) -> None:
    """The way of messages through a client and the sync pair A1, A2, as three processes' files."""
    options = TracingOptions(file_directory=str(directory))
    client, a1, a2 = (start_tracing(name, options) for name in ("client", "A1", "A2"))
    for number, m in enumerate(messages):
        at = START_NS + number * 1000 * MS
        a2.delivery([m], at + 4 * MS, at + 6 * MS, instance="A2", subscription="s")
        a2.persisted_ack([m], at + 4 * MS, at + 5 * MS, instance="A2", upstream="A1", epoch=1)
        a2.commit([m], at + 3 * MS, at + 4 * MS, instance="A2", upstream="A1", epoch=1)
        a1.persisted_ack([m], at + 5 * MS, at + 7 * MS, instance="A1")
        a1.link_send([m], at + 2 * MS, at + 5 * MS, instance="A1", destination="A2", epoch=1)
        a1.commit([m], at + 1 * MS, at + 2 * MS, instance="A1")
        if publish:
            attributes = {"bookmark": m.bookmark, "topic": m.topic, "client": "pub"}
            end_ns = at + (8 + number) * MS
            client.root("publish", m.context, at, end_ns, attributes | {"outcome": "persisted"})
    for tracing in (client, a1, a2):
        tracing.close()


def printed(path: Path, message: str | None = None, **options: Any) -> str:
    out = io.StringIO()
    print_trace(path, message, out, **options)
    return out.getvalue()


def test_the_way_of_one_message_is_a_tree(tmp_path: Path) -> None:
    first, second = message(1), message(2)
    write_traces(tmp_path, first, second)
    text = printed(tmp_path, first.bookmark)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == f"{first.bookmark}  topic flights  trace {first.context[:16].hex()}"
    assert lines[1] == "7 spans, 2 instances, 3 processes, 8.000 ms, persisted after 8.000 ms"
    assert lines[3:] == [
        "      0.000      8.000  publish                 pub      client",
        "      1.000      1.000  ├─ commit               A1       A1",
        "      2.000      3.000  │  └─ link send         A1 → A2  A1",
        "      3.000      1.000  │     ├─ remote commit  A2 ← A1  A2",
        "      4.000      2.000  │     │  └─ delivery    A2       A2",
        "      4.000      1.000  │     └─ persisted ack  A2 ← A1  A2",
        "      5.000      2.000  └─ persisted ack        A1       A1",
    ]
    # The bookmark's closing bar may be left away, and a trace id names the message too.
    assert printed(tmp_path, first.bookmark.rstrip("|")) == text
    assert printed(tmp_path, first.context[:16].hex()) == text


def test_json_has_the_same_tree(tmp_path: Path) -> None:
    m = message(1)
    write_traces(tmp_path, m)
    found = json.loads(printed(tmp_path, m.bookmark, as_json=True))
    assert found["trace_id"] == m.context[:16].hex()
    (publish,) = found["spans"]
    assert (publish["name"], publish["offset_ms"], publish["duration_ms"]) == ("publish", 0.0, 8.0)
    commit, ack = publish["children"]
    assert (commit["name"], ack["name"]) == ("commit", "persisted ack")
    assert commit["children"][0]["attributes"]["destination"] == "A2"
    assert commit["children"][0]["children"][0]["name"] == "remote commit"


def test_the_list_shows_all_or_the_slowest(tmp_path: Path) -> None:
    messages = [message(n) for n in range(1, 6)]
    write_traces(tmp_path, *messages)
    lines = printed(tmp_path).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [m.bookmark for m in messages]
    assert lines[1].split() == [messages[0].bookmark, "flights", "8.000", "8.000", "7", "2"]
    assert lines[-1] == "5 traces in 3 files"
    lines = printed(tmp_path, slowest=2).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [m.bookmark for m in messages[:2:-1]]
    assert lines[-1] == "5 traces in 3 files, the 2 slowest shown"
    objects = [json.loads(line) for line in printed(tmp_path, as_json=True).splitlines()]
    assert [o["persisted_ms"] for o in objects] == [8.0, 9.0, 10.0, 11.0, 12.0]
    assert objects[0]["instances"] == ["A1", "A2"]


def test_the_list_shows_people_the_last_twenty_and_says_how_to_see_more(tmp_path: Path) -> None:
    messages = [message(n) for n in range(1, 26)]
    write_traces(tmp_path, *messages)
    lines = printed(tmp_path).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [m.bookmark for m in messages[5:]]
    assert lines[-1] == "25 traces in 3 files, the last 20 shown: --last 0 shows all"
    lines = printed(tmp_path, last=0).splitlines()
    assert (len(lines), lines[-1]) == (27, "25 traces in 3 files")
    assert len(printed(tmp_path, last=3).splitlines()) == 5
    # The slowest are looked for among all, and a program gets all.
    lines = printed(tmp_path, slowest=2).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [m.bookmark for m in messages[:22:-1]]
    assert len(printed(tmp_path, as_json=True).splitlines()) == 25
    assert len(printed(tmp_path, as_json=True, last=4).splitlines()) == 4


def test_a_killed_publisher_leaves_the_rest_readable(tmp_path: Path) -> None:
    m = message(1)
    write_traces(tmp_path, m, publish=False)
    with next(tmp_path.glob("A2-*")).open("a") as file:
        file.write('{"trace_id":"12')  # torn by the kill
    lines = printed(tmp_path, m.bookmark).splitlines()
    assert lines[1] == "6 spans, 2 instances, 2 processes, 6.000 ms"
    assert [line.split()[2] for line in lines[3:5]] == ["commit", "└─"]
    assert "1 lines are no spans" in printed(tmp_path)
    assert printed(tmp_path).splitlines()[1].split()[2] == "-"


def test_spans_of_a_missing_parent_stand_below_the_publish() -> None:
    def span(span_id: str, parent_id: str, end_ns: int) -> TraceSpan:
        return TraceSpan("t", span_id, parent_id, f"span {span_id}", 0, end_ns, "p", {})

    publish, lost, twin, below = (
        span("1", "", 9),
        span("2", "77", 3),
        span("3", "1", 2),
        span("4", "3", 1),
    )
    again = span("3", "1", 5)
    (root,) = tree([publish, again, lost, twin, below])
    assert root is publish
    assert root.children == [twin, lost, again]
    assert twin.children == [below]


def test_a_publish_in_a_span_of_the_application_is_the_root_all_the_same(tmp_path: Path) -> None:
    """Our files have no spans of applications."""
    of = TracedMessage(new_context(), PUBLISHER, 1, "flights")
    tracing = start_tracing("client", TracingOptions(file_directory=str(tmp_path)))
    tracing.commit([of], 2, 3, instance="A1")
    attributes = {"bookmark": of.bookmark, "topic": "flights", "client": "pub"}
    tracing.root("publish", of.context, 1, 4, attributes, bytes(7) + b"x")
    tracing.delivery([of], 3, 5, instance="gone")
    tracing.close()
    text = printed(tmp_path, of.bookmark)
    assert text.index("publish") < text.index("commit") < text.index("delivery")
    assert "├─ commit" in text and "└─ delivery" in text


def test_what_queues_do_is_said_with_what_became_of_it(tmp_path: Path) -> None:
    m = message(1)
    tracing = start_tracing("A1.work", TracingOptions(file_directory=str(tmp_path)))
    beside = {"bookmark": m.bookmark, "topic": "flights", "instance": "A1", "queue": "work"}
    enqueue = derived(m.context, "enqueue", "A1", "work")
    tracing.span("enqueue", m.context, START_NS, START_NS + MS, beside, own=enqueue)
    for name, end, more in (
        ("transfer", 2, {"from": "B1", "to": "A1", "generation": 1}),
        ("lease", 3, {"client": "ann", "outcome": "expired"}),
        ("acknowledgment", 4, {"how": "expire", "by": "9|1|"}),
        ("removal", 4, {"outcome": "forced_expire"}),
    ):
        tracing.span(name, enqueue, START_NS + MS, START_NS + end * MS, beside | more)
    tracing.close()
    lines = [
        line.split(maxsplit=2)[2].rstrip() for line in printed(tmp_path, m.bookmark).splitlines()
    ]
    assert lines[3:] == [
        "enqueue                     A1        A1.work",
        "├─ transfer [generation 1]  B1 → A1   A1.work",
        "├─ lease [expired]          A1 → ann  A1.work",
        "├─ acknowledgment [expire]  A1        A1.work",
        "└─ removal [forced_expire]  A1        A1.work",
    ]


def test_of_very_many_spans_of_one_parent_the_first_and_the_last_are_shown(tmp_path: Path) -> None:
    m = message(1)
    tracing = start_tracing("A1.work", TracingOptions(file_directory=str(tmp_path)))
    for number in range(1, 1_001):
        said = {"bookmark": m.bookmark, "topic": "t", "instance": "A1", "client": f"c{number}"}
        at = START_NS + number * MS
        own = derived(m.context, "lease", "A1", "work", number)
        tracing.span("lease", m.context, at, at + MS, said, own=own)
        tracing.span("delivery", own, at, at + MS, said)
    tracing.close()
    lines = printed(tmp_path, m.bookmark).splitlines()[3:]
    shown = [line.split()[-2] for line in lines if "delivery" in line]
    assert shown == [f"c{number}" for number in (*range(1, 21), *range(981, 1_001))]
    assert lines[40].strip() == "… 960 more (--json shows all)" and len(lines) == 81
    assert len(json.loads(printed(tmp_path, m.bookmark, as_json=True))["spans"]) == 1_000


def test_parents_in_a_circle_do_not_hang_the_report() -> None:
    one = TraceSpan("t", "1", "2", "one", 0, 1, "p", {})
    two = TraceSpan("t", "2", "1", "two", 0, 2, "p", {})
    self_parent = TraceSpan("t", "3", "3", "three", 0, 3, "p", {})
    roots = tree([one, two, self_parent])
    assert {span.name for span in roots} == {"two", "three"}
    assert two.children == [one]


def test_a_single_file_may_be_read(tmp_path: Path) -> None:
    m = message(1)
    write_traces(tmp_path, m)
    (path,) = tmp_path.glob("A1-*")
    assert printed(path).splitlines()[-1] == "1 traces in 1 files"
    assert len(list(TraceFiles(path).spans())) == 3


def test_of_many_files_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        write_traces(tmp_path / str(number), message(number))
    files = TraceFiles(tmp_path)
    ids = sorted({span.trace_id for span in files.spans()})
    assert len(ids) == 3
    assert {span.trace_id for span in files.spans(*ids[1:])} == set(ids[1:])
    for path in (tmp_path / "1").glob("*.jsonl"):
        os.utime(path, ns=(10, 10))
    assert len({span.trace_id for span in files.spans(since_ns=11)}) == 2
    assert len({span.trace_id for span in files.spans(since_ns=10)}) == 3


@pytest.mark.parametrize("wrong", ["12", "flights", "1|2|3|", "'; drop"])
def test_what_is_no_message_is_refused(tmp_path: Path, wrong: str) -> None:
    write_traces(tmp_path, message(1))
    with pytest.raises(ConfigurationError, match="is neither a bookmark nor a trace id"):
        printed(tmp_path, wrong)


def test_the_command_prints_and_fails_clearly(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("trace")(trace_command)
    write_traces(tmp_path / "traces", message(1))
    run = CliRunner().invoke
    done = run(app, [str(tmp_path / "traces"), "--slowest", "1"])
    assert (done.exit_code, "1 traces in 3 files" in done.stdout) == (0, True)
    done = run(app, [str(tmp_path / "traces"), "--message", f"{PUBLISHER}|1|", "--json"])
    assert json.loads(done.stdout)["spans"][0]["name"] == "publish"
    done = run(app, [str(tmp_path / "traces"), "--message", "1|99|"])
    assert (done.exit_code, "there is no trace of 1|99|" in done.stderr) == (1, True)
    done = run(app, [str(tmp_path / "empty")])
    assert (done.exit_code, "no trace file" in done.stderr) == (1, True)


def test_what_clients_and_topics_are_called_is_no_command(tmp_path: Path) -> None:
    hostile = "\x1b[2J\x9b\u202e\nforged\x7f"
    of = TracedMessage(new_context(), PUBLISHER, 1, f"flights{hostile}")
    tracing = start_tracing("client", TracingOptions(file_directory=str(tmp_path)))
    attributes = {"bookmark": of.bookmark, "topic": of.topic, "client": hostile}
    tracing.root(
        "publish", of.context, START_NS, START_NS + MS, attributes | {"outcome": "persisted"}
    )
    tracing.close()
    for shown in (
        printed(tmp_path),
        printed(tmp_path, of.bookmark),
        printed(tmp_path, as_json=True),
        printed(tmp_path, of.bookmark, as_json=True),
    ):
        assert all(line.isprintable() for line in shown.split("\n"))
        assert "\nforged" not in shown


def test_spans_are_found_across_the_pieces_in_which_a_file_is_searched(tmp_path: Path) -> None:
    line = json.dumps(
        {"trace_id": "a" * 32, "span_id": "b" * 16, "parent_id": None, "name": "publish",
         "start_ns": 1, "end_ns": 2, "process": "p", "attributes": {"bookmark": "7|1|"}}
    )  # fmt: skip
    filler = json.dumps({"no": "span"}) + "\n"
    before = filler * (PIECE_BYTES // len(filler))
    # One lies across the bound of two pieces, one in the next, one has no end of line.
    (tmp_path / "p-1.jsonl").write_text(before + line + "\n" + before + line + "\n" + line)
    files = TraceFiles(tmp_path)
    assert len(list(files.spans('"7|1|"'))) == 3
    assert files.bad_lines == 0
    assert len(list(files.spans())) == 3
    assert files.bad_lines == 2 * (PIECE_BYTES // len(filler))
    assert files.traces_of("7|1")[0][0].name == "publish"


def test_a_file_that_its_process_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    for name in ("p-1", "p-2"):
        (tmp_path / f"{name}.jsonl").write_text("no span\n")
    files = TraceFiles(tmp_path)
    (tmp_path / "p-1.jsonl").unlink()
    assert list(files.spans()) == []
    assert files.bad_lines == 1
