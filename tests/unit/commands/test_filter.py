"""`raylay filter`: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.fake_server import FakeServer
from typer.testing import CliRunner, Result

from raylay.services.cli import app


def filtered(*arguments: str, given: str | bytes = "") -> Result:
    """`raylay filter` with this input."""
    return CliRunner().invoke(app, ["filter", *arguments], input=given)


def test_what_passes_is_printed_as_it_is(tmp_path: Path) -> None:
    lines = '{"a": 1,  "b":2}\n\n{"a": 2}\r\n{"a": "1"}'
    found = filtered("/a = 1", given=lines)
    assert (found.exit_code, found.stdout) == (0, '{"a": 1,  "b":2}\n{"a": "1"}\n')
    file = tmp_path / "a.json"
    file.write_text(lines)
    assert filtered("/a = 1", str(file)).stdout == found.stdout


def test_nothing_that_passes_is_no_failure() -> None:
    found = filtered("/a = 1", given='{"a": 2}\n')
    assert (found.exit_code, found.stdout) == (0, "")


@pytest.mark.covers("Filters by content", "`raylay filter`")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a = ", "raylay: column 6: expected a field"),
        ("/a == b", "  /a == b\n        ^\n"),
        ("/a LIKE '(x'", "  /a LIKE '(x'\n          ^\n"),
        ("/a = 1\t AND\n ?", "  /a = 1  AND  ?\n               ^\n"),
        ("/x = 1 OR " * 100 + "?", "^\n"),
    ],
)
def test_what_is_no_filter_ends_with_2_and_the_column(text: str, shown: str) -> None:
    found = filtered(text, given='{"a": 2}\n')
    assert (found.exit_code, found.stdout) == (2, "")
    assert shown in found.stderr
    assert max(map(len, found.stderr.splitlines()[1:])) <= 102


@pytest.mark.covers("Filters by content", "`raylay filter`")
def test_a_message_that_cannot_be_read_is_told_with_its_line_and_the_others_go_on() -> None:
    found = filtered("/a = 1", given='{"a": 1}\nno json\n{"a": 1, "b": 1}\n')
    assert found.exit_code == 1
    assert found.stdout == '{"a": 1}\n{"a": 1, "b": 1}\n'
    assert found.stderr.startswith("input:2: this is no message of type json: ")


def test_another_type_is_read_by_its_own_rules() -> None:
    found = filtered("/55 = 'IBM'", "--type", "fix", given=b"55=IBM\x0144=1\x01\n55=X\x01\n")
    assert (found.exit_code, found.stdout) == (0, "55=IBM\x0144=1\x01\n")


def test_an_unknown_type_is_refused() -> None:
    found = filtered("/a = 1", "--type", "jsn", given="{}\n")
    assert found.exit_code == 1
    assert "no message type is called 'jsn'" in str(found.exception)


@pytest.mark.covers("Filters by content", "`raylay filter`")
def test_each_part_is_explained() -> None:
    found = filtered("/a > 1 AND /b", "--explain", given='{"a": 2}\n{"a": 1}\n')
    assert found.stdout.splitlines() == [
        '{"a": 2}  does not pass',
        "  ((/a > 1) AND /b)  is  NULL",
        "    (/a > 1)  is  TRUE",
        "      /a  is  2",
        "    /b  is  NULL",
        '{"a": 1}  does not pass',
        "  ((/a > 1) AND /b)  is  FALSE",
        "    (/a > 1)  is  FALSE",
        "      /a  is  1",
        "    /b  is  NULL",
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = filtered("/a = 1", str(tmp_path / "none.json"))
    assert isinstance(found.exception, FileNotFoundError)


def test_raylay_subscribe_asks_for_what_passes() -> None:
    async def main() -> None:
        server = await FakeServer().start()
        reading = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "raylay.services.cli", "subscribe", "orders",
            "--filter", "/a = 1", "--server", server.address,
        )  # fmt: skip
        await server.wait(lambda: server.sessions and server.session.commands("subscribe"))
        (asked,) = server.session.commands("subscribe")
        reading.kill()
        await reading.wait()
        await server.stop()
        assert asked["o"] == {"filter": "/a = 1"}

    asyncio.run(main())
