"""The console's pages of clients, topics, queues and instances, of events, checks and drills, in a
real browser: the worst first, what is silent is named, names are texts, nothing is cut off."""

from __future__ import annotations

import pytest
from support.console_browser import Browser, Console
from support.generated_amps import HOSTILE
from support.generated_fabric import GeneratedFabric

TABS = (
    *("now", "links", "clients", "queues", "sow", "journal", "slow", "host", "configuration"),
    "actions",
)
PAGES = (
    *("clients", "client/billing", "topics", "topic/orders", "queues", "queue/orders_to_bill"),
    *("views", "view/delays", "view/delays%2Fslow"),
    *("events", "check", "drills", "history", "automation"),
    *(f"instance/NewYork-1/{tab}" for tab in TABS),
)
LOADED = """
() => document.querySelector('main h1') !== null
  && document.querySelector('main .state-box[role=status], main [data-partial]') === null
"""
SILENT = "status of 503"
LONG_MS = 120_000
"""Bound on waits for very large answers."""
UNKNOWN = "\u2013"


def open_page(console: Console, page: str) -> None:
    """Opens a page, and waits until no part of it waits for an answer."""
    console.open(f"#/{page}")
    console.until(LOADED)


def rows(console: Console, table: str) -> list[list[str]]:
    """Returns the texts of the cells that are drawn."""
    found: list[list[str]] = console.page.eval_on_selector_all(
        f"#{table} tbody tr[data-row]",
        "(all) => all.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))",
    )
    return found


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_is_cut_off_on_any_page(browser: Browser, width: int) -> None:
    with browser.console(GeneratedFabric(hostile=True), width) as console:
        console.allowed.append(SILENT)
        for page in PAGES:
            open_page(console, page)
            console.picture(f"{page.replace('/', '-')}-{width}-light")
            assert console.faults() == [], page
            assert console.page.locator("main [role=alert]").count() == 0, page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_holds_for_people_who_see_or_click_otherwise(
    browser: Browser, scheme: str
) -> None:
    with browser.console(GeneratedFabric(scenario="healthy"), 1440, scheme) as console:
        for page in PAGES:
            open_page(console, page)
            console.picture(f"{page.replace('/', '-')}-1440-{scheme}")
            assert console.axe() == [], page


@pytest.mark.covers("Administration", "the console's tables: order and filter in the addres")
def test_the_slow_consumer_is_named_first(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append(SILENT)
        open_page(console, "clients")
        slowest = " ".join(console.text(".callout").split())
        assert "Slowest: billing at Tokyo-1, on orders, is 41 s ▲ growing behind" in slowest
        behind = [(row[0], row[1]) for row in rows(console, "clients-subscribers")[:4]]
        assert behind[:3] == [
            ("billing", "41 s ▲ growing"),
            ("gate-42", "28 s = steady"),
            ("web-7", "15 s ▼ shrinking"),
        ]
        assert behind[3][1] == "0 s"
        waits = [row[6] for row in rows(console, "clients-subscribers")[:4]]
        assert waits == ["41 s", "40 s", "39 s", "0 ms"], "how long the oldest one waits for it"
        console.page.click("#clients-subscribers tbody tr:first-child td:nth-child(1)")
        console.page.wait_for_selector("main h1:has-text('billing')")
        console.page.wait_for_selector("main .card h2:has-text('Tokyo-1')")
        assert console.page.locator("main .card-head h2").first.inner_text() == "At Tokyo-1"


def test_a_silent_instance_is_named_and_spares_the_others(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append(SILENT)
        open_page(console, "clients")
        notice = console.text(".notice")
        assert "Clients at 1 instance: unknown" in notice
        assert "London-2 (127.0.0.1:9003) has not answered within 1 s" in notice
        instances = {row[3] for row in rows(console, "clients-subscribers")}
        assert instances == {"NewYork-1", "NewYork-2", "London-1", "Tokyo-1", "Tokyo-2"}


@pytest.mark.covers("Administration", "the console's tables: order and filter in the addres")
def test_order_and_filter_stand_in_the_address(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "clients?show=publishers")
        console.page.click("#clients-publishers th button:has-text('Sequence')")
        console.page.fill("main [data-filter]", "mirror London")
        console.until(
            "() => document.querySelectorAll('#clients-publishers tbody tr').length === 2"
        )
        assert "sort=-sequence" in console.page.url
        assert "q=mirror+London" in console.page.url
        before = rows(console, "clients-publishers")
        assert before[0][3] == "9,007,199,254,740,998", "64 bits are not rounded"
        console.page.reload()
        console.until(LOADED)
        console.page.wait_for_selector("#clients-publishers tbody tr")
        assert [row[0] for row in rows(console, "clients-publishers")] == ["mirror", "mirror"]
        sorted_by = console.page.get_attribute("#clients-publishers th[aria-sort]", "aria-sort")
        assert sorted_by == "descending"


@pytest.mark.covers("Administration", "the console's tables: order and filter in the addres")
def test_the_csv_is_what_is_shown(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy", hostile=True)) as console:
        open_page(console, "clients?show=subscribers&q=script+NewYork-1")
        with console.page.expect_download() as found:
            console.page.click("#clients-subscribers button:has-text('CSV')")
        text = found.value.path().read_text(encoding="utf-8")
        lines = text.splitlines()
        assert (
            lines[0] == "Client,Behind,Topic,Instance,Messages,Backlog,Waits,Delivered,Kind,Filter"
        )
        assert len(lines) == 2
        assert lines[1].startswith(f"{HOSTILE},")


@pytest.mark.covers("Administration", "the console's tables: order and filter in the addres")
def test_ten_thousand_rows_are_a_few_elements(browser: Browser) -> None:
    fabric = GeneratedFabric(2, scenario="healthy")
    fabric.clients_each = 5_000
    with browser.console(fabric) as console:
        console.open("#/clients")
        console.page.wait_for_selector(
            "#clients-subscribers table[aria-rowcount='10001']", timeout=LONG_MS
        )
        assert console.page.locator("#clients-subscribers tbody tr[data-row]").count() < 120
        console.page.eval_on_selector(
            "#clients-subscribers .table-scroll", "(box) => box.scrollTo(0, box.scrollHeight)"
        )
        console.page.wait_for_selector(
            "#clients-subscribers tr[aria-rowindex='10001']", timeout=LONG_MS
        )
        assert console.page.locator("#clients-subscribers tbody tr[data-row]").count() < 120


def test_names_are_texts(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy", hostile=True)) as console:
        console.page.on("dialog", lambda found: pytest.fail(f"a name was run: {found.message}"))
        name = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
        for page in (f"client/{name}", f"topic/{name}", f"queue/{name}", f"instance/{name}/now"):
            open_page(console, page)
            console.page.wait_for_selector("main h1")
            assert console.text("main h1") == HOSTILE, page
            assert console.page.locator("main script").count() == 0


def test_rows_keep_their_places_while_values_change(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "queues")
        before = [row[0] for row in rows(console, "queues")]
        for _ in range(3):
            console.tick(7)
        assert [row[0] for row in rows(console, "queues")] == before


def test_an_instance_tells_what_is_unknown_by_a_dash(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        console.allowed.append(SILENT)
        console.open("#/instance/London-2")
        console.page.wait_for_selector(".page-facts")
        head = console.text(".page-head")
        assert "last answer" in head
        assert "unknown" in head
        assert console.page.locator(".tile-value", has_text="0").count() == 0
        assert console.page.locator(".tile-value", has_text=UNKNOWN).count() > 5


def test_a_wrong_name_says_what_there_is(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "instance/Nowhere")
        assert "Nowhere is no instance of this fabric" in console.text()
        open_page(console, "queue/nothing")
        assert "There is no queue nothing" in console.text()
        assert "orders_to_bill" in console.text()
        open_page(console, "client/nobody")
        assert "nobody is connected to no instance that answers" in console.text()


def test_events_come_by_themselves_and_problems_close(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "events")
        console.page.wait_for_selector("#events tbody tr")
        assert "No open problem" in console.text(".problems")
        console.do(lambda fabric: fabric.downgrade("NewYork-1~London", owes=1_204))
        first = "#events tbody tr:first-child"
        console.page.wait_for_selector(f"{first} :has-text('London by anna')")
        assert "1 open problem" in console.text(".problems")
        console.page.click("button:has-text('Act now')")
        console.page.wait_for_selector("main :text('Nothing has happened')")
        console.page.click("main .segments button:text-is('All') >> nth=1")
        console.do(lambda fabric: fabric.heal())
        console.page.wait_for_selector(".problems :text('1 closed problem')")
        console.page.click(".problems summary")
        console.page.wait_for_selector(".problems details li:has-text('do not wait for London')")


def test_the_check_says_what_to_do(browser: Browser) -> None:
    with browser.console(GeneratedFabric()) as console:
        open_page(console, "check")
        found = rows(console, "check")
        assert found[0][1:] == [
            "Messages of Tokyo reach London by one path only",
            "Tokyo-1 → London",
            "Add a destination London to Tokyo-2.",
        ]
        assert found[0][0].endswith("warning")


def test_drill_reports_are_listed_and_an_empty_list_says_how_to_make_one(
    browser: Browser,
) -> None:
    with browser.console(GeneratedFabric()) as console:
        open_page(console, "drills")
        found = {row[0]: row[1] for row in rows(console, "drills")}
        assert found["slow_disk"].endswith("broken")
        console.page.click("#drills a:has-text('slow_disk')")
        console.page.wait_for_selector("main h1:has-text('slow_disk')")
        open_link = console.page.locator("main a:text-is('open')")
        assert open_link.get_attribute("rel") == "noopener noreferrer"
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "drills")
        assert "raylay drill" in console.text()


@pytest.mark.covers("Administration", "the console's page of actions")
def test_an_action_that_failed_comes_first_with_its_error(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_page(console, "automation")
        first, second, third = sorted(rows(console, "automation"), key=lambda row: "2" not in row)
        assert rows(console, "automation")[0] == first
        assert "copy to archive" in first[0] and "2 failed runs" in " ".join(first)
        assert "step 2 (compress-files): disk full" in first
        assert {second[0], third[0]} == {"rotate logs", "on a signal"}
        never = next(row for row in (second, third) if row[0] == "on a signal")
        assert "never ran" in " ".join(never) and "never" in never
