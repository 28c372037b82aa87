"""The message pages of the console (services/console/static/pages/messages.js) in a real browser,
before a whole instance with real messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.console_browser import WIDTHS, Browser, Console
from support.generated_fabric import GeneratedFabric
from support.messages_console import NAME, MessagesThread, way

# `make test-all` runs them: Chromium would starve the tests beside it.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

BIG = (1 << 63) - 7
SCRIPT = "<script>window.__ran = 1</script>"


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "symbol": "RAY", "price": 120.5 + number, **more}).encode()


@contextmanager
def messages(browser: Browser, **more: Any) -> Iterator[tuple[Console, MessagesThread]]:
    made: list[MessagesThread] = []

    def make(fabric: GeneratedFabric) -> MessagesThread:
        made.append(MessagesThread(fabric))
        return made[0]

    with browser.console(GeneratedFabric(6), make=make, **more) as console:
        yield console, made[0]


def rows(console: Console) -> list[str]:
    return [each.inner_text() for each in console.page.query_selector_all("#messages tr[data-row]")]


def read(console: Console, topic: str, start: str = "epoch", **more: str) -> None:
    """Fills the bar, and presses the button."""
    page = console.page
    page.get_by_label("topic", exact=True).fill(topic)
    if "filter" in more:
        page.get_by_label("filter", exact=True).fill(more["filter"])
    page.select_option("select[name=start]", start)
    page.get_by_role("button", name="Read", exact=True).click()


def ended(console: Console, text: str = "that is all there is") -> str:
    console.until("(text) => document.querySelector('.progress')?.textContent.includes(text)", text)
    return console.text(".progress")


@pytest.mark.covers("Administration", "the console's message browser and *its way*; a large")
def test_messages_are_found_by_topic_time_and_filter(browser: Browser) -> None:
    with messages(browser) as (console, at):
        at.publish("orders", *map(order, range(40)))
        console.open("#/messages")
        console.page.wait_for_selector(".topic-card")
        assert "orders" in console.text(".suggestions")
        read(console, "orders", filter="/id >= 37")
        assert "3 found, 40 read, at " in ended(console)
        assert len(rows(console)) == 3
        assert '"id": 37' in rows(console)[0]
        address = console.page.url
        console.page.reload()
        ended(console)
        assert len(rows(console)) == 3, "the address holds what was asked"
        assert console.page.url == address
        assert console.faults() == []
        assert console.axe() == []


def test_a_filter_that_is_none_says_where(browser: Browser) -> None:
    with messages(browser) as (console, _):
        console.allowed.append("400")
        console.open("#/messages")
        read(console, "orders", filter="/id >")
        alert = console.page.wait_for_selector("main [role=alert]")
        assert "is no filter" in alert.inner_text()


def test_reading_stops_at_the_limit_and_goes_on(browser: Browser) -> None:
    with messages(browser) as (console, at):
        at.publish("orders", *map(order, range(150)))
        console.open("#/messages")
        console.page.select_option("select[name=limit]", "100")
        read(console, "orders")
        assert "100 found" in ended(console, "stopped at the limit of 100")
        console.page.get_by_role("button", name="go on").click()
        assert "150 found, 150 read" in ended(console)
        assert len(rows(console)) == 150


def test_messages_are_followed_and_wait_while_one_is_read(browser: Browser) -> None:
    with messages(browser) as (console, at):
        console.open("#/messages")
        read(console, "orders", "now")
        console.page.wait_for_selector("text=following")
        at.publish("orders", order(1))
        console.page.wait_for_selector("#messages tr[data-row]")
        console.page.click("#messages .row-title")
        console.page.wait_for_selector(".message-panel .code-line")
        at.publish("orders", order(2), order(3))
        console.page.click("text=show 2 new messages")
        assert [json.loads(each.split("\t")[-2])["id"] for each in rows(console)] == [3, 2, 1]
        console.page.get_by_role("button", name="Stop").click()
        assert "stopped" in ended(console, "stopped")


@pytest.mark.covers("Administration", "the console's message browser and *its way*; a large")
def test_a_panel_shows_all_digits_and_runs_nothing(browser: Browser) -> None:
    with messages(browser) as (console, at):
        at.publish("orders", order(1, big=BIG, name=SCRIPT), correlation=SCRIPT.encode())
        console.open("#/messages")
        read(console, "orders")
        console.page.click("#messages .row-title")
        console.page.wait_for_selector(".message-panel .code-line")
        body = console.text(".message-panel .code")
        assert f'"big": {BIG}' in body
        assert SCRIPT in body
        assert SCRIPT in console.text(".message-headers")
        assert console.page.evaluate("window.__ran") is None
        console.page.get_by_role("button", name="text", exact=True).click()
        console.page.get_by_role("button", name="hex", exact=True).click()
        console.page.wait_for_selector("text=00000000")
        console.page.get_by_role("button", name="close the message").click()
        console.page.wait_for_selector(".message-panel", state="detached")
        assert len(rows(console)) == 1, "nothing was read again"
        assert console.faults() == []


BODIES: list[tuple[str, bytes, list[str]]] = [
    ("xml", b"<a><b x='1'>7</b><c/></a>", ["<a>", "  <b x='1'>7</b>", "  <c/>", "</a>"]),
    ("fix", b"8=FIX.4.4\x0135=D\x0144=12.50\x01", ["35 MsgType = D", "44 Price = 12.50"]),
    ("json", b'{"a":[1.10,{"b":[]}],"c":"x"}', ['  "a": [', "    1.10,", '      "b": []']),
    ("json", b"{no json", ["{no json"]),
    ("binary", bytes(range(40)), ["00000020  20 21 22 23 24 25 26 27"]),
]


def test_bodies_are_shown_by_their_type(browser: Browser) -> None:
    with messages(browser) as (console, at):
        for kind, body, lines in BODIES:
            (bookmark,) = at.publish("typed", body, kind=kind)
            console.open(f"#/message/{bookmark}?topic=typed", ".code-line")
            console.until(
                "(lines) => lines.every((line) => [...document.querySelectorAll("
                "'.message-panel .code-line')].some((each) => each.textContent.includes(line)))",
                lines,
            )


def test_a_body_of_14_mb_freezes_nothing(browser: Browser) -> None:
    with messages(browser) as (console, at):
        large = json.dumps(
            [{"number": number, "text": "x" * 90} for number in range(110_000)] + ["y" * 1_000_000]
        ).encode()
        (bookmark,) = at.publish("large", large)
        console.open(f"#/message/{bookmark}?topic=large", ".code-line")
        assert "The first 16.0 KiB of" in console.text(".cut-note")
        console.page.click("text=show all")
        console.until(
            "() => /[34]\\d\\d,\\d\\d\\d lines/.test("
            "document.querySelector('.message-panel .code')?.getAttribute('aria-label'))"
        )
        console.page.eval_on_selector(".code", "(box) => { box.scrollTop = box.scrollHeight; }")
        console.until("() => document.querySelector('.code-seen').textContent.includes('yyyy')")
        assert console.page.eval_on_selector_all(".code-line", "(all) => all.length") < 200


def test_a_message_is_published_seen_and_published_again(browser: Browser) -> None:
    with messages(browser) as (console, _):
        page = console.page
        console.open("#/messages")
        page.get_by_role("button", name="publish a message").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("topic").fill("orders")
        dialog.get_by_label("body").fill('{"id": 7')
        assert "This is no JSON" in dialog.inner_text()
        dialog.get_by_label("body").fill('{"id": 7}')
        assert "There is no way back" in dialog.inner_text()
        dialog.get_by_role("button", name="Publish to orders").click()
        page.wait_for_selector("text=persisted after")
        page.click("text=see it, and its way")
        page.wait_for_selector(".code-line")
        assert '"id": 7' in console.text(".message-panel .code")
        page.get_by_role("button", name="publish again").click()
        dialog.get_by_label("body").fill('{"id": 8}')
        dialog.get_by_role("button", name="Publish to orders").click()
        page.wait_for_selector("text=persisted after")
        dialog.get_by_role("button", name="Close", exact=True).click()
        console.open("#/messages?topic=orders&source=sow")
        ended(console)
        assert len(rows(console)) == 2


@pytest.mark.covers("Administration", "the console's message browser and *its way*; a large")
def test_its_way_is_drawn_and_told(browser: Browser) -> None:
    with messages(browser) as (console, at):
        (bookmark,) = at.publish("orders", order(1))
        at.trace(bookmark, way(ahead_ms=2.2))
        console.open(f"#/message/{bookmark}?topic=orders", ".way-svg")
        told = console.text(".way-sum")
        assert "persisted after 8.0 ms" in told
        assert "The longest step: link send NewYork-1 → London-1, 5.2 ms (65 % of the wait)" in told
        assert "London-1: clock 1.0 ms behind" in told
        names = console.page.eval_on_selector_all(
            ".way-name", "(all) => all.map((each) => each.firstChild.textContent)"
        )
        assert names[0] == "desk"
        assert names[1:] == [
            NAME, "NewYork-1.London", "NewYork-1.Tokyo", "London-1", "Tokyo-1", "blotter"
        ]  # fmt: skip
        assert console.page.query_selector(".way-arrow-back")
        assert console.overlaps(".way-label") == []
        console.page.focus(".way-longest")
        console.page.keyboard.press("Enter")
        assert "took" in console.text(".way-chosen-card")
        stored = console.text("#stored")
        assert NAME in stored
        assert "1 of 3 instances" in console.text(".way-stored")
        assert console.faults() == []


def test_a_gap_is_folded(browser: Browser) -> None:
    with messages(browser) as (console, at):
        (bookmark,) = at.publish("orders", order(1))
        late = ("b", "4", "delivery", "night", 9_000, 9_001, {"instance": NAME, "client": "night"})
        at.trace(bookmark, [*way(), late])
        console.open(f"#/message/{bookmark}", ".way-fold")
        assert "9.0 s" in (console.page.text_content(".way-svg") or "")


def test_a_message_that_was_not_sampled_says_so_and_where_it_is(browser: Browser) -> None:
    with messages(browser) as (console, at):
        (bookmark,) = at.publish("orders", order(1))
        console.open(f"#/message/{bookmark}", ".way-none")
        assert "was not sampled" in console.text(".way-none")
        assert NAME in console.text("#stored")


def test_a_message_that_is_nowhere_says_what_to_do(browser: Browser) -> None:
    with messages(browser) as (console, _):
        console.allowed.append("404")
        console.open("#/message/77%7C1%7C", ".message-panel .state-box")
        console.page.wait_for_selector("text=The message is not here")


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("tablet", "light"), ("phone", "dark")]
)
def test_pages_fit_and_are_accessible(browser: Browser, size: str, scheme: str) -> None:
    with messages(browser, width=WIDTHS[size], scheme=scheme) as (console, at):
        bookmarks = at.publish(
            "orders", *(order(n, account="4711", text="a longer text " * 9) for n in range(60))
        )
        at.publish("flights", b"8=FIX.4.4\x0135=D\x0144=12.50\x01", kind="fix")
        at.trace(bookmarks[2], way())
        # On a phone the head of each page has a link without a text; test_frame.py owns it.
        elsewhere = ("link-name",) if size == "phone" else ()
        console.open("#/messages", ".topic-card")
        console.picture(f"messages-empty-{size}-{scheme}")
        assert console.faults() == []
        console.open(
            "#/messages?topic=orders%7Cflights&start=epoch&run=1", "#messages tr[data-row]"
        )
        ended(console)
        console.picture(f"messages-{size}-{scheme}", full_page=False)
        assert console.faults() == []
        assert console.axe(*elsewhere) == []
        console.page.click("#messages .row-title >> nth=2")
        console.page.wait_for_selector(".message-panel .code-line")
        console.picture(f"messages-open-{size}-{scheme}", full_page=False)
        assert console.faults() == []
        assert console.axe(*elsewhere) == []
        console.open(f"#/message/{bookmarks[2]}?topic=orders", ".way-svg")
        console.page.wait_for_selector(".message-panel .code-line")
        console.picture(f"message-{size}-{scheme}")
        assert console.faults() == []
        assert console.axe(*elsewhere) == []
        console.page.get_by_role("button", name="publish again").click()
        console.page.wait_for_selector("dialog[open]")
        console.picture(f"publish-{size}-{scheme}", full_page=False)
        assert console.axe(*elsewhere) == []
