"""`raylay console`: opens the console of a fabric in the browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from raylay.services.commands.shared.options import FabricOption, HttpOption, JsonOption, running
from raylay.services.commands.shared.printing import echo_result

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def console(
    fabric: FabricOption = "",
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser, where there is one.")
    ] = True,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open a fabric's console in the browser, and print its address. Any instance serves it; it
    needs neither Ray nor the fabric's other instances."""
    entry = None if http else running(fabric)
    from raylay.services.fabric.by_interface import console_address

    address = console_address(entry, http or ())
    echo_result(as_json, address, console=address)
    if open_browser and has_browser():
        import webbrowser

        webbrowser.open(address)


def has_browser() -> bool:
    """Returns whether a browser can show a page to the person who types: a browser in the terminal
    would take the terminal."""
    if "BROWSER" in os.environ or sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in _DISPLAYS)
