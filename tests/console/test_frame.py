"""The frame of the console's pages (services/console/static/core/app.js) in a real browser: it
loads under its policy, by keyboard, in light and dark, and says when its instance is gone."""

from __future__ import annotations

import re

import pytest
from support.console_browser import WIDTHS, Browser
from support.generated_fabric import HOSTILE, GeneratedFabric

PAGES = ("#/", "#/instances", "#/links", "#/link/NewYork-1~London")


def healthy(size: int = 2) -> GeneratedFabric:
    return GeneratedFabric(size, scenario="healthy")


def test_the_tab_says_that_there_is_something_to_do(browser: Browser) -> None:
    with browser.console(healthy()) as console:
        console.open("#/instances")
        assert console.page.title() == "Instances · flights · Raylay"
        console.do(lambda fabric: fabric.kill("London-1"))
        assert console.page.title() == "■ Instances · flights · Raylay"
        assert "with something to do now" in console.page.text_content(".nav")


@pytest.mark.covers("Administration", "the console for everybody: keyboard, axe, small scre")
@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (1024, "light"), (390, "dark")]
)
def test_nothing_is_cut_off_or_breaks_a_rule_of_accessibility(
    browser: Browser, width: int, scheme: str
) -> None:
    with browser.console(GeneratedFabric(6), width, scheme) as console:
        for place in PAGES:
            console.open(place)
            console.settled()
            assert not console.faults(), place
            assert not console.axe(), place
            name = re.sub(r"\W+", "-", place).strip("-") or "overview"
            console.picture(f"{name}-6-{width}-{scheme}")


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_hundred_instances_fit(browser: Browser, width: int) -> None:
    with browser.console(GeneratedFabric(100), width, "dark") as console:
        for place in ("#/", "#/instances", "#/links"):
            console.open(place)
            console.settled()
            assert not console.faults(), place
            name = re.sub(r"\W+", "-", place).strip("-") or "overview"
            console.picture(f"{name}-100-{width}-dark")


@pytest.mark.covers("Administration", "the console for everybody: keyboard, axe, small scre")
def test_names_like_scripts_are_texts(browser: Browser) -> None:
    fabric = GeneratedFabric(6, hostile=True)
    with browser.console(fabric) as console:
        for place in (*PAGES, f"#/link/{HOSTILE}~London", f"#/links?q={HOSTILE}"):
            console.open(place)
            assert not console.page.evaluate(
                "() => document.querySelectorAll('main script').length"
            )
        assert HOSTILE in console.text()
        console.page.keyboard.press("Control+k")
        console.page.wait_for_selector("dialog[open] input")
        console.page.keyboard.type("<scr")
        console.page.wait_for_selector(f"#found li:has-text('{HOSTILE}')")


def test_a_peer_that_lies_breaks_nothing(browser: Browser) -> None:
    fabric = GeneratedFabric(6)
    fabric.lie("NewYork-1")
    fabric.slow("London-1")
    with browser.console(fabric) as console:
        for place in PAGES:
            console.open(place)
            console.settled()
            assert "This page failed" not in console.text()
            assert not console.faults(), place


@pytest.mark.covers("Administration", "the console for everybody: keyboard, axe, small scre")
def test_the_keyboard_does_everything(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        page, press = console.page, console.page.keyboard.press
        console.open()
        # One call types both keys, because the second one must follow soon.
        page.keyboard.type("gl")
        page.wait_for_selector("#links tbody tr")
        assert "/#/links" in page.url
        press("j")
        first = page.evaluate("() => document.activeElement.textContent")
        press("j")
        second = page.evaluate("() => document.activeElement.textContent")
        assert "→" in first and "→" in second and first != second
        press("k")
        assert page.evaluate("() => document.activeElement.textContent") == first
        press("Enter")
        page.wait_for_selector(".ends")
        press("Escape")
        page.wait_for_selector("#links tbody tr")
        press("/")
        page.keyboard.type("tokyo-1 new")
        assert "q=tokyo-1" in page.url
        console.until("() => document.querySelectorAll('#links tbody tr').length === 1")
        press("Escape")
        press("?")
        page.wait_for_selector("dialog:has-text('this help')")
        press("Escape")
        console.closed()
        press("p")
        page.wait_for_selector(".banner:has-text('Paused')")
        press("p")
        page.wait_for_selector(".banner", state="detached")


def test_find_goes_to_an_instance(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        console.open("#/links")
        console.page.keyboard.press("Control+k")
        console.page.wait_for_selector("dialog[open] input")
        console.page.keyboard.type("instances")
        console.page.wait_for_selector("#found-0:has-text('Instances')")
        assert not console.axe()
        console.page.keyboard.press("Enter")
        console.page.wait_for_selector("#instances tbody tr")
        assert console.page.url.endswith("#/instances")


def test_a_paused_page_asks_for_nothing(browser: Browser) -> None:
    with browser.console(healthy()) as console:
        console.open("#/instances")
        console.settled()
        console.page.keyboard.press("p")
        console.page.wait_for_selector(".banner")
        console.page.wait_for_load_state("networkidle")
        before = len(console.at.server.asked)
        console.page.wait_for_timeout(2_500)  # Of three polls that would have come.
        assert len(console.at.server.asked) == before
        console.page.keyboard.press("p")
        console.settled()


def test_the_chosen_colours_are_kept(browser: Browser) -> None:
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    with browser.console(healthy(), scheme="dark") as console:
        console.open()
        assert console.page.evaluate(background) == "rgb(18, 22, 27)"
        console.page.click("[aria-label='colours: auto']")
        assert console.page.evaluate(background) == "rgb(255, 255, 255)"
        console.page.reload()
        console.page.wait_for_selector("main h1")
        assert console.page.evaluate(background) == "rgb(255, 255, 255)"
        console.page.click("[aria-label='colours: light']")
        assert console.page.evaluate(background) == "rgb(18, 22, 27)"


def test_the_time_zone_goes_along(browser: Browser) -> None:
    with browser.console(healthy()) as console:
        console.open("#/links")
        assert "UTC" in console.text(".clock")
        console.page.click(".clock")
        assert "tz=local" in console.page.url
        assert "+01:00" in console.text(".clock")  # Berlin in November.
        console.page.click(".nav a:has-text('Instances')")
        console.page.wait_for_selector("#instances")
        assert "tz=local" in console.page.url


def test_a_page_that_is_not_there_says_so(browser: Browser) -> None:
    with browser.console(healthy()) as console:
        console.open("#/nothing/%E0%A4%A", ".state-box h2")
        assert "There is no page “nothing”" in console.text()
        console.open("#/link/Paris~Rome", ".state-box h2")
        assert "There is no link Paris~Rome" in console.text()


def test_an_instance_that_is_gone_names_the_others(browser: Browser) -> None:
    with browser.console(healthy(6)) as console:
        console.open()
        console.settled()
        console.allowed.append("503")
        console.at.server.is_away = True
        banner = console.page.wait_for_selector(".banner-attention")
        text = banner.inner_text()
        assert "NewYork-1 does not answer" in text and "the instance is away" in text
        links = console.page.eval_on_selector_all(".banner-link", "(all) => all.map((a) => a.href)")
        assert len(links) == 5 and all("/#/" in link for link in links)
        assert not console.axe()
        console.at.server.is_away = False
        console.page.wait_for_selector(".banner-attention", state="detached")


@pytest.mark.covers("Administration", "the console for everybody: keyboard, axe, small scre")
def test_a_page_below_a_prefix_works(browser: Browser) -> None:
    """All addresses are relative, as a proxy before the instance needs it."""
    with browser.console(healthy()) as console:

        def forward(route: object) -> None:
            request = route.request  # type: ignore[attr-defined]
            address = request.url.replace("/some/prefix/", "/")
            route.fulfill(response=route.fetch(url=address))  # type: ignore[attr-defined]

        console.page.route("**/some/prefix/**", forward)
        console.page.goto(console.at.url + "some/prefix/#/instances")
        console.page.wait_for_selector("#instances tbody tr")
        wrong = [each for each in console.at.server.asked if "prefix" in each]
        assert not wrong
