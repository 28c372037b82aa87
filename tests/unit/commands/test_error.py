"""`raylay error`: what an event or a line of a log means."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app

LINE = "2026-01-02T03:04:05.123456Z warning Chicago-1 instance 21-0010 downgraded destination=x"


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["error", *arguments])
    return found.exit_code, found.output


@pytest.mark.covers("Administration", "every event has a code and an explanation")
@pytest.mark.parametrize("text", ["21-0010", "downgraded", LINE])
def test_a_code_a_name_and_a_line_are_explained(text: str) -> None:
    code, output = run(*text.split())
    assert code == 0
    assert output.startswith("21-0010 downgraded (warning; links to destinations)")
    assert "why: It did not acknowledge in time" in output and "do:  Find out why" in output


def test_all_codes_are_listed_and_given_as_json() -> None:
    code, output = run()
    assert code == 0 and "1D-0001  storage_failed" in output
    code, output = run("--json", "storage_failed")
    (found,) = json.loads(output)
    assert code == 0 and found["code"] == "1D-0001" and found["level"] == "critical"


def test_what_nobody_knows_is_said() -> None:
    code, output = run("99-9999")
    assert code == 1 and "nothing is known about '99-9999'" in output
