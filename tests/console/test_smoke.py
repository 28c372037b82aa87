"""The console opens in a real browser, shows a fabric, and performs an action: the one test of it
that every change runs. The rest of tests/console is slow."""

from __future__ import annotations

import asyncio

import pytest
from support.console_browser import Browser
from support.generated_fabric import GeneratedFabric


@pytest.mark.covers("Administration", "the console: a healthy fabric is quiet; the worst co")
def test_the_console_opens_and_a_link_is_downgraded(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
        assert "flights" in console.text("header")
        assert "All is well" in console.text(".verdict h1")
        assert console.page.title() == "Overview · flights · Raylay"
        assert console.page.get_attribute(".nav a[aria-current]", "href") == "#/"
        console.page.wait_for_selector(".graph[data-ready]")
        console.page.click(".nav a:has-text('Links')")
        console.page.click("#links .row-title:has-text('NewYork-1 → London')")
        console.page.wait_for_selector(".ends")
        console.page.click("button:has-text('downgrade London')")
        console.page.wait_for_selector("dialog[open]")
        assert "stop waiting for London" in console.text("dialog")
        console.page.click("dialog button:has-text('downgrade London')")
        console.page.wait_for_selector(".page-head .status:has-text('downgraded')")
        assert console.at.do(lambda fabric: fabric.links["NewYork-1~London"].state) == "downgraded"
    # Playwright's loop is out of the way of the next test.
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
