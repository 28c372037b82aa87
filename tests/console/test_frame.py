"""The frame of the console's pages (services/console/static/core/app.js) in a real browser: it
loads under its policy, by keyboard, in light and dark, and says when its instance is gone."""

from __future__ import annotations

import asyncio

from support.console_browser import Browser
from support.generated_fabric import GeneratedFabric


def test_the_frame_is_shown(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open()
        assert "flights" in console.text("header")
        assert console.page.title().endswith("flights · Raylay")
        assert console.page.get_attribute(".nav a[aria-current]", "href") == "#/"


def test_other_tests_can_run_a_loop_of_their_own(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
