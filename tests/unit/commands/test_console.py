"""`raylay console`: prints the address, and opens the browser where a person can see it."""

from __future__ import annotations

import webbrowser

import pytest
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands import console
from raylay.services.fabric import by_interface


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr(by_interface, "console_address", lambda entry, http: f"http://{http[0]}/")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.covers("Administration", "`raylay console` prints the address always")
@pytest.mark.parametrize(
    ("variable", "options", "opens"),
    [
        ("", [], False),
        ("DISPLAY", [], True),
        ("BROWSER", [], True),
        ("DISPLAY", ["--no-open"], False),
    ],
)
def test_the_address_is_printed_always(
    variable: str,
    options: list[str],
    opens: bool,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console.sys, "platform", "linux")
    if variable:
        monkeypatch.setenv(variable, ":0")
    done = CliRunner().invoke(app, ["console", "--http", "h:8085", *options])
    assert done.output == "http://h:8085/\n" and done.exit_code == 0
    assert opened == (["http://h:8085/"] if opens else [])


def test_other_systems_have_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.sys, "platform", "darwin")
    assert console.has_browser()
