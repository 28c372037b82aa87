"""The console's pages of views and conflated topics in a real browser: what each is made of, what
it does, and its rows as they change."""

from __future__ import annotations

import pytest
from support.console_browser import Browser, Console
from support.generated_fabric import GeneratedFabric

SILENT = "status of 503"
ROWS = "() => document.querySelectorAll('#view-rows tbody tr[data-row]').length === 3"

NOTE_MARKS = """() => {
  window.__marked = [];
  new MutationObserver(() => {
    const marked = [...document.querySelectorAll('#view-rows .view-changed')];
    window.__marked.push(String(marked.map((each) => each.textContent)));
  }).observe(document.querySelector('main'), {
    attributes: true, characterData: true, childList: true, subtree: true,
  });
}"""
"""Notes what is marked at each change of the page: a mark stands only until the next read."""


def rows(console: Console, table: str) -> list[list[str]]:
    """Returns the texts of the cells of a table."""
    found: list[list[str]] = console.page.eval_on_selector_all(
        f"#{table} tbody tr[data-row]",
        "(all) => all.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))",
    )
    return found


@pytest.mark.covers("Administration", "the console's views: what each is made of, what it")
def test_views_are_listed_and_the_one_out_of_service_is_named(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append(SILENT)
        console.open("#/views?sort=name")
        console.until("() => document.querySelectorAll('#views tbody tr').length === 3")
        delays, named, slow = rows(console, "views")
        assert delays[:4] == ["delays", "●ready", "view", "flights"]
        assert "growing" in delays[7]
        assert named[0] == "delays/named" and named[1].endswith("out of service")
        assert slow[2] == "conflated topic"
        console.page.click("main .segments button:has-text('Conflated topics')")
        console.until("() => document.querySelectorAll('#views tbody tr').length === 1")
        console.page.click("#views tbody tr td")
        console.page.wait_for_selector("main h1:has-text('delays/slow')")
        console.until("() => document.querySelector('main .card')?.textContent.includes('5s')")
        console.open("#/view/delays%2Fnamed")
        console.page.wait_for_selector("main .why:has-text('would take more than')")


@pytest.mark.covers("Administration", "the console's views: what each is made of, what it")
def test_a_views_rows_are_read_again_and_what_changed_is_marked(browser: Browser) -> None:
    fabric = GeneratedFabric(scenario="healthy", hostile=True)
    with browser.console(fabric) as console:
        console.open("#/view/delays")
        console.until(ROWS)
        first = rows(console, "view-rows")
        assert [row[:2] for row in first] == [
            ["C0", "JFK"], ["C1", "LHR"], ["<script>alert(1)</script>", "HND"],
        ]  # fmt: skip
        assert first[0][2] == "9007199254740993", "64 bits are not rounded"
        assert console.page.locator("#view-rows .view-changed").count() == 0
        console.page.evaluate(NOTE_MARKS)
        fabric.tick += 100
        console.until("(text) => window.__marked.includes(text)", str(40 + fabric.tick))
        assert console.text(".projection").splitlines() == [
            "/carrier AS /carrier", "COUNT(/delay) AS /flights", "MAX(/delay, 'a,b') AS /worst",
        ]  # fmt: skip
        assert console.axe() == []


def test_what_is_asked_of_the_rows_stands_in_the_address(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open("#/view/delays")
        console.until(ROWS)
        console.page.fill("main form input[name=order]", "/worst DESC")
        console.page.fill("main form input[name=filter]", "no filter")
        console.page.click("main form button[type=submit]")
        console.page.wait_for_selector("main [role=alert]:has-text('expected an operator')")
        assert "order=%2Fworst+DESC" in console.page.url and "filter=no+filter" in console.page.url
        console.page.fill("main form input[name=filter]", "/worst > 1")
        console.page.click("main form button[type=submit]")
        console.until(ROWS)
        console.page.wait_for_selector("main [role=alert]", state="detached")


def test_without_views_the_page_says_what_they_are(browser: Browser) -> None:
    class Without(GeneratedFabric):
        def _views(self) -> list[dict[str, object]]:
            return []

    with browser.console(Without(scenario="healthy")) as console:
        console.open("#/views")
        console.page.wait_for_selector("main .state-box:has-text('No view is configured')")
        console.open("#/view/nothing")
        console.page.wait_for_selector("main .state-box:has-text('There is no view nothing')")


@pytest.mark.covers("Administration", "the console's views: what each is made of, what it")
def test_subscriptions_say_what_they_are_and_what_they_share(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open("#/instance/NewYork-1/clients")
        console.page.wait_for_selector("#aggregations tbody tr")
        console.page.wait_for_selector("#paginations tbody tr")
        (order,) = rows(console, "paginations")
        assert (order[0], order[2], order[4:7]) == ("delays", "/worst DESC", ["1,204", "2", "3"])
        (groups,) = rows(console, "aggregations")
        assert groups[0] == "flights" and groups[1].endswith("being built")
        assert "Changes that wait" in console.text("main .card:has-text('Conflated')")
        console.open("#/client/risk")
        console.page.wait_for_selector("#client-subscriptions tbody tr")
        first = rows(console, "client-subscriptions")[0]
        assert first[1] == "paginated"
        assert first[6] == "oof, top_n=50, skip_n=0, order by /worst DESC"
