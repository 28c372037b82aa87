"""The first page, links and instances in a real browser: what is wrong stands first, rows keep
their places, an unknown value is never 0, and what is shown can be taken away as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from support.console_browser import Browser
from support.generated_fabric import GeneratedFabric

UNKNOWN = "\N{EN DASH}"
ROWS = "#links tbody tr[data-row]"


@pytest.mark.covers("Administration", "the console: a healthy fabric is quiet; the worst co")
def test_a_healthy_fabric_is_quiet(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6, scenario="healthy")) as console:
        console.open()
        console.settled()
        assert console.page.locator(".problem").count() == 0
        assert console.page.locator(".nav .badge").count() == 0
        assert "All is well" in console.text(".verdict h1")
        assert "all 6 instances answered" in console.text(".verdict")


@pytest.mark.covers("Administration", "the console: a healthy fabric is quiet; the worst co")
def test_waiting_publishers_come_first_with_what_to_do(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        console.open()
        console.page.wait_for_selector(".problem")
        console.do(lambda fabric: fabric.kill("London-1", 0))
        console.do(lambda fabric: fabric.kill("London-2", 0))
        console.tick(12)
        first = console.page.locator(".problem").first
        text = first.inner_text()
        assert "Publishers at" in text and "which is disconnected" in text
        assert "since 04:12" in text and "growing" in text
        assert "link lost" in text  # What happened just before.
        assert first.locator(".problem-do button").count() == 1
        console.allowed.append("status of 503")  # The link's page asks both of its dead ends.
        first.locator(".problem-title").click()
        console.page.wait_for_selector(".ends")


@pytest.mark.covers("Administration", "the console: a healthy fabric is quiet; the worst co")
def test_a_silent_instance_is_unknown_and_in_no_sum(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6, scenario="healthy")) as console:
        console.open("#/instances")
        console.do(lambda fabric: fabric.silence("London-1", 30))
        row = console.page.locator("#instances tr", has_text="London-1")
        cells = row.locator("td.numeric").all_inner_texts()
        assert cells and set(cells) == {UNKNOWN}
        assert "does not answer, last answer" in row.inner_text()
        assert "5 of 6 answered" in console.text()
        console.open("#/links?q=london-1")
        assert "last answer" in console.text("#links")


def test_a_refresh_moves_no_row(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        console.open("#/links?sort=-rate_per_sec")
        for _ in range(3):
            console.tick(13)
        console.page.click("button:has-text('sort again')")
        names = console.page.locator(f"{ROWS} .row-title")
        before = names.all_inner_texts()
        places = [box for _, box in console.places(".nav a, main h1, .filter, thead th")]
        for _ in range(5):
            console.tick(11)
        assert names.all_inner_texts() == before
        assert [box for _, box in console.places(".nav a, main h1, .filter, thead th")] == places
        console.page.click("button:has-text('sort again')")
        rates = [
            float(text.removesuffix("/s").replace(",", ""))
            for text in console.page.locator(f"{ROWS} td:nth-child(4)").all_inner_texts()
            if text != UNKNOWN
        ]
        assert rates == sorted(rates, reverse=True)
        assert names.all_inner_texts() != before


def test_the_address_holds_filter_and_order(browser: Browser) -> None:
    with browser.console(GeneratedFabric(30)) as console:
        console.open("#/links")
        console.page.fill(".filter", "london tokyo")
        console.page.click("#links th button:has-text('Owes')")
        assert console.page.get_attribute("#links th[aria-sort]", "aria-sort") == "descending"
        before = console.page.locator(f"{ROWS} .row-title").all_inner_texts()
        assert before and all("London" in name and "Tokyo" in name for name in before)
        console.page.reload()
        console.page.wait_for_selector(ROWS)
        assert console.page.input_value(".filter") == "london tokyo"
        assert sorted(console.page.locator(f"{ROWS} .row-title").all_inner_texts()) == sorted(
            before
        )
        assert console.page.get_attribute("#links th[aria-sort]", "aria-sort") == "descending"


def test_the_csv_is_what_is_shown(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        console.open("#/links?q=newyork-1&sort=link")
        shown = console.page.locator(f"{ROWS} .row-title").all_inner_texts()
        with console.page.expect_download() as download:
            console.page.click("button:has-text('CSV')")
        with open(download.value.path(), encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(io.StringIO(file.read())))
        assert [row["Link"] for row in rows] == shown
        assert all(row["Owes"] == "" or float(row["Owes"]) >= 0 for row in rows)


def test_a_thousand_links_are_few_elements(browser: Browser) -> None:
    with browser.console(GeneratedFabric(100)) as console:
        console.open("#/links")
        console.settled()
        table = console.page.locator("#links table")
        assert table.get_attribute("aria-rowcount") == "1001"
        assert 10 < console.page.locator(ROWS).count() < 80
        console.page.eval_on_selector(".table-scroll", "(box) => box.scrollTo(0, 1e9)")
        console.page.wait_for_selector(f"{ROWS}[aria-rowindex='1001']")
        assert console.page.locator(ROWS).count() < 80
        assert not console.axe()


def test_a_link_shows_both_ends_and_what_it_means(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6, scenario="healthy")) as console:
        console.open("#/link/NewYork-1~London")
        assert "Acknowledgments at NewYork-1 wait for London" in console.text()
        console.do(lambda fabric: fabric.downgrade("NewYork-1~London", owes=1_204))
        text = console.text()
        assert "sync, now async" in text and "configured sync" in text
        assert "do not wait for London now" in text
        assert "should not fail over to London: owes" in text
        ends = console.page.locator(".end").all_inner_texts()
        assert "At NewYork-1" in ends[0] and "At London-1" in ends[1]
        assert "receives" in ends[1] and "London-1 → NewYork" in ends[1]


def test_an_async_link_to_another_group_is_no_worry_for_failover(browser: Browser) -> None:
    fabric = GeneratedFabric(6, scenario="healthy")
    fabric.links["NewYork-1~Tokyo"].owes = 7
    with browser.console(fabric) as console:
        console.open("#/links?q=newyork-1")
        row = console.page.locator(ROWS, has_text="NewYork-1 → Tokyo")
        assert "not for failover" in row.inner_text()
        assert console.page.locator(".unsafe-text").count() == 0
        console.open("#/")
        console.page.wait_for_selector(".g-cards .g-card")
        assert "unsafe: owes" not in console.text() and "unsafe" not in str(
            console.page.text_content(".graph-counts")
        )
        console.open("#/link/NewYork-1~Tokyo")
        assert "do not fail over along it" in console.text()
        assert console.page.locator(".unsafe").count() == 0


def test_events_come_by_themselves(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.open()
        console.page.wait_for_selector(".event-list li")
        console.at.do(lambda fabric: fabric.note("London-1", "state", "was greeted", "info", 60))
        first = console.page.wait_for_selector(".event-list li:has-text('was greeted')")
        assert "London-1" in first.inner_text()


def test_what_cannot_be_read_says_what_to_do(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2)) as console:
        console.at.server.is_away = True
        console.allowed.append("503")
        for place in ("#/", "#/links", "#/instances"):
            console.page.goto(console.at.url + place)
            console.page.wait_for_selector(".state-box[role='alert']")
            text = console.text()
            assert "could not be read" in text and "the instance is away" in text
            assert "asks again by itself" in text


def test_a_refresh_of_a_hundred_instances_costs_little(browser: Browser) -> None:
    """A tenth of a second of processor time would be felt. It takes a fifth of that."""
    with browser.console(GeneratedFabric(100)) as console:
        for place in ("#/", "#/links", "#/instances"):
            console.page.goto("about:blank")
            before = console.cost()
            console.open(place)
            console.settled()
            begun = console.cost()
            assert begun - before < 2_000, place
            for _ in range(3):
                console.tick()
            # Each waits for two answers.
            assert (console.cost() - begun) / 6 < 100, place


def test_nothing_is_kept_of_what_was_shown_before(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        console.open("#/links")
        nodes = "() => document.querySelectorAll('*').length"
        console.settled()
        before = console.page.evaluate(nodes)
        for _ in range(20):
            console.tick()
        assert console.page.evaluate(nodes) == before


def test_a_reload_and_refreshes_show_the_same_in_the_same_places(browser: Browser) -> None:
    """Role, state and box of each part on a grid of 8 px; texts have times in them."""

    def picture() -> list[tuple[str, str, list[int]]]:
        return [(each["role"], each["state"], each["box"]) for each in console.structure()]

    with browser.console(GeneratedFabric(6, scenario="healthy")) as console:
        for place in ("#/instances?sort=-clients", "#/links?q=tokyo", "#/link/NewYork-1~London"):
            console.open(place)
            # With the second answer a page also knows what its user may do.
            console.settled()
            console.settled()
            before = picture()
            assert len(before) > 20
            for _ in range(3):
                console.settled()
            assert picture() == before, place
            console.page.reload()
            console.page.wait_for_selector("main h1")
            console.settled()
            console.settled()
            assert picture() == before, place
