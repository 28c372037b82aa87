"""The charts of the console (services/console/static/pages/history.js, core/chart.js) in a real
browser: one range and one cursor, gaps that stay gaps, all in the address, all by keyboard."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from support.console_browser import Browser, Console
from support.generated_fabric import GeneratedFabric

DRAWN = """
() => document.querySelector('.chart canvas') !== null
  && [...document.querySelectorAll('.chart')].every((each) => each.querySelector('canvas'))
"""
KNOWN = """
() => [...document.querySelectorAll('.chart-legend')]
  .every((each) => /\\d/.test([...each.querySelectorAll('output')].map((one) => one.value)))
"""
ONE_CURSOR = """
() => {
  const all = [...document.querySelectorAll('.chart-at')].map((each) => each.textContent);
  return all.length === 4 && all[0].endsWith('UTC') && all.every((each) => each === all[0]);
}
"""


def open_history(console: Console, query: str = "") -> None:
    console.open(f"#/history{query}")
    console.until(DRAWN)
    console.until(KNOWN)


def call(console: Console, module: str, expression: str, argument: Any = None) -> Any:
    """Returns what an expression over a module of the console gives."""
    return console.page.evaluate(
        f"async (argument) => {{ const of = await import('./console/{module}');"
        f" return {expression}; }}",
        argument,
    )


def test_a_number_opens_its_history(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open("#/instance/NewYork-1/links")
        console.page.click("#instance-links tbody tr:first-child td:nth-child(4) a")
        console.until(KNOWN)
        assert "charts=NewYork-1:instance/replication/NewYork-2/messages_out_per_sec" in unquote(
            console.page.url
        )
        assert "NewYork-1" in console.text(".chart")
        assert console.page.locator(".chart").count() == 1


@pytest.mark.covers("Administration", "the console's history: gaps stay gaps, events are ma")
def test_charts_share_a_range_a_cursor_and_a_chosen_time(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_history(console)
        assert console.page.locator(".chart").count() == 4
        console.picture("history")
        first = console.page.locator(".chart-plot").first
        first.focus()
        for _ in range(5):
            console.page.keyboard.press("Shift+ArrowLeft")
        console.until(ONE_CURSOR)
        at = console.text(".chart-at >> nth=0")
        console.page.keyboard.press("Enter")
        console.page.wait_for_selector("[data-chosen]")
        assert "at=2026-11-27T" in unquote(console.page.url)
        console.page.reload()
        console.until(KNOWN)
        assert at[:19] in console.text("[data-chosen]")
        around = console.page.get_attribute("[data-chosen] a >> nth=0", "href")
        assert around is not None
        assert "#/events" in around
        assert "from=" in around


def test_zooming_by_key_and_choosing_a_range_changes_the_address(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_history(console)
        console.page.locator(".chart-plot").first.focus()
        console.page.keyboard.press("+")
        console.until("() => location.hash.includes('to=2026-11-27T')")
        console.page.click(".range-bar button:text-is('6 h')")
        console.until("() => location.hash.endsWith('from=-6h')")
        console.page.fill("[name=from]", "yesterday")
        console.page.wait_for_selector("[name=from][aria-invalid=true]")
        console.page.fill("[name=from]", "2026-11-27T04:00:00Z")
        console.page.keyboard.press("Enter")
        console.until("() => decodeURIComponent(location.hash).includes('04:00:00Z')")


def test_a_table_stands_behind_each_chart_and_its_data_can_be_had(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_history(console, "?charts=NewYork-1:instance/raylay/ack_ms_p99")
        console.page.click(".chart button:text-is('table')")
        console.page.wait_for_selector("#chart-0-values table")
        cells = console.page.eval_on_selector_all(
            "#chart-0-values tbody tr[data-row] td", "(all) => all.map((each) => each.textContent)"
        )
        assert cells[0].startswith("2026-11-27 04:1")
        assert cells[1].endswith(" ms")
        links = console.page.eval_on_selector_all(
            ".menu a", "(all) => all.map((each) => each.getAttribute('href'))"
        )
        assert [link.split("?")[0] for link in links] == [
            "raylay/peer/NewYork-1/amps/instance/raylay/ack_ms_p99.csv",
            "raylay/peer/NewYork-1/amps/instance/raylay/ack_ms_p99.json",
        ]
        assert all("t0=2026-11-27T" in link and "&t1=" in link for link in links)


@pytest.mark.covers("Administration", "the console's history: gaps stay gaps, events are ma")
def test_gaps_stay_gaps(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open("#/history")
        found = call(console, "core/chart.js", "of.withGaps([0, 10, 20, 90, 100], [1, 2, 3, 4, 5])")
        assert found == [[0, 10, 20, 30, 90, 100], [1, 2, 3, None, 4, 5]]


def test_a_silent_instance_leaves_the_other_lines(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append("status of 503")
        open_history(console)
        console.page.wait_for_selector(".chart-actions :text('London-2 is missing')")


def test_a_range_without_values_offers_the_last_that_there_are(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open(
            "#/history?charts=NewYork-1:instance/raylay/ack_ms_p99"
            "&from=2026-11-28T00:00:00Z&to=2026-11-28T01:00:00Z"
        )
        console.page.wait_for_selector(".chart-empty button")
        assert "No values from 2026-11-28 00:00:00 UTC" in console.text(".chart-empty")
        console.page.click(".chart-empty button")
        console.until(KNOWN)


@pytest.mark.covers("Administration", "the console's history: gaps stay gaps, events are ma")
def test_events_are_marks(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append("status of 503")
        open_history(console, "?charts=NewYork-1:instance/raylay/ack_ms_p99")
        mark = console.page.wait_for_selector(".chart-mark")
        assert mark is not None
        assert "NewYork-1: London: no acknowledgment for 3 s" in mark.get_attribute("aria-label")


def test_a_chart_is_added_and_removed(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_history(console)
        console.page.click("button:text-is('Add a chart')")
        console.page.fill("dialog input[type=search]", "loop_delay")
        console.page.click(".picker-list button")
        console.until("() => document.querySelectorAll('.chart').length === 5")
        assert "loop_delay_ms_p99" in console.page.url
        console.page.locator("[aria-label^='Remove ']").first.click()
        console.until("() => document.querySelectorAll('.chart').length === 4")


def test_a_name_of_any_characters_survives_the_address(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
        charts = [[["a:b,c;d", "instance/clients/x%2Fy%3B/bytes_in"], ["e", "host/name"]]]
        encoded = call(console, "core/history_link.js", "of.encodeCharts(argument)", charts)
        assert call(console, "core/history_link.js", "of.decodeCharts(argument)", encoded) == charts


def test_times_are_read_as_people_write_them(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
        for text, expected in (
            *(("-15m", 99_100), ("-2h", 92_800), ("now", 100_000), ("", 100_000)),
            *(("1970-01-02T00:00:00Z", 86_400), ("1970-01-02 00:00", 86_400)),
            *(("1970-01-02T01:00:00+01:00", 86_400), ("soon", None), ("-1y", None)),
        ):
            found = call(console, "core/range.js", f"of.readTime({text!r}, 100000)")
            assert found == expected, text


def test_64_bit_numbers_and_documented_times_are_read_exactly(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
        amps = "core/amps.js"
        assert call(console, amps, "String(of.num('9007199254740993'))") == "9007199254740993"
        assert call(console, amps, "of.num('')") is None
        assert call(console, amps, "of.num('1.5')") == 1.5
        assert call(console, amps, "of.timeOf('20261127T041207.000123Z')") == 1_795_752_727_000_123
        lines = "20261127T041207.000000Z,1.5\n20261127T041217.000000Z,\nnonsense\n"
        assert call(console, "pages/history.js", "of.readLines(argument)", lines) == {
            "times": [1_795_752_727, 1_795_752_737],
            "values": [1.5, None],
        }
