"""The dialogs of administrator's actions (services/console/static/core/action.js) in a real
browser: they tell the risk in numbers of now, and stay until the effect shows."""

from __future__ import annotations

import pytest
from support.console_browser import Browser, Console
from support.generated_fabric import GeneratedFabric

LINKS = "#/instance/NewYork-1/links"
DOWNGRADE = "downgrade NewYork-2 at NewYork-1"


def open_dialog(console: Console, page: str, label: str) -> None:
    console.open(page)
    console.page.get_by_label(label, exact=True).click()
    console.page.wait_for_selector(".risk li")


@pytest.mark.covers("Administration", "the console's dialogs: what is risked, a typed name,")
def test_a_dialog_tells_the_risk_and_the_same_from_a_shell(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.at.do(lambda fabric: setattr(fabric.links["NewYork-1~NewYork-2"], "owes", 1_204))
        open_dialog(console, LINKS, DOWNGRADE)
        assert console.text("dialog h2") == "downgrade NewYork-2 at NewYork-1?"
        assert "1,204 messages that NewYork-2 lacks count as acknowledged now" in console.text(
            "dialog"
        )
        console.until("document.activeElement.textContent === 'Cancel'")
        assert console.text("dialog [type=submit]") == "downgrade NewYork-2"
        console.page.click("dialog summary")
        shell = console.text("dialog .same")
        assert "curl -X POST -H 'X-Raylay: 1'" in shell
        assert "raylay downgrade NewYork-1 NewYork-2 --fabric " in shell
        console.picture("action-downgrade", full_page=False)
        assert console.axe() == []
        assert console.faults() == []
        assert console.page.url.endswith(LINKS), "a press inside a dialog opens no row"


def test_numbers_follow_while_the_dialog_is_open(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_dialog(console, LINKS, DOWNGRADE)
        console.at.do(lambda fabric: setattr(fabric.links["NewYork-1~NewYork-2"], "owes", 77))
        console.page.wait_for_selector(".risk li:has-text('77 messages')")


@pytest.mark.covers("Administration", "the console's dialogs: what is risked, a typed name,")
def test_a_dialog_stays_until_the_effect_shows(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_dialog(console, LINKS, DOWNGRADE)
        console.page.click("dialog [type=submit]")
        console.page.wait_for_selector("dialog [data-phase=done]")
        assert "Done: downgrade NewYork-2, by anna" in console.text("dialog")
        assert console.at.do(lambda fabric: fabric.performed) == [
            ("NewYork-1", "replication/NewYork-2/downgrade", {})
        ]
        console.page.click("dialog button:text-is('Close')")
        console.page.get_by_label("upgrade NewYork-2 at NewYork-1", exact=True).wait_for()
        console.page.wait_for_selector("#instance-links :text('downgraded')")


def test_a_dialog_is_left_and_sent_by_keyboard(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.open(LINKS)
        console.page.get_by_label(DOWNGRADE, exact=True).focus()
        console.page.keyboard.press("Enter")
        console.until("document.activeElement.textContent === 'Cancel'")
        console.page.keyboard.press("Escape")
        console.page.wait_for_selector("dialog", state="detached")
        console.until("document.activeElement.textContent === 'downgrade'")
        assert console.at.do(lambda fabric: fabric.performed) == []
        console.page.keyboard.press("Enter")
        console.page.wait_for_selector(".risk li")
        console.until("document.activeElement.textContent === 'Cancel'")
        console.page.keyboard.press("Tab")
        console.page.keyboard.press("Enter")
        console.page.wait_for_selector("dialog [data-phase=done]")


@pytest.mark.covers("Administration", "the console's dialogs: what is risked, a typed name,")
def test_what_is_gone_for_good_needs_its_name_typed(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_dialog(console, "#/instance/NewYork-1/journal", "remove up to 1 at NewYork-1")
        button = console.page.locator("dialog [type=submit]")
        assert button.get_attribute("aria-disabled") == "true"
        console.page.fill("dialog [name=typed]", "2")
        console.page.keyboard.press("Enter")
        assert console.at.do(lambda fabric: fabric.performed) == []
        console.page.fill("dialog [name=typed]", "1")
        console.page.wait_for_selector("dialog [type=submit][aria-disabled=false]")
        console.page.keyboard.press("Enter")
        console.page.wait_for_selector("dialog [data-phase=done]")
        assert console.at.do(lambda fabric: fabric.performed)[0][1] == (
            "transaction_log/journals/1/remove"
        )


@pytest.mark.covers("Administration", "the console's dialogs: what is risked, a typed name,")
def test_what_a_user_may_not_do_is_disabled_and_says_why(browser: Browser) -> None:
    path = "/amps/administrator/clients/1/disconnect"
    fabric = GeneratedFabric(2, scenario="healthy")
    fabric.denied.add(path)
    with browser.console(fabric) as console:
        console.open("#/client/billing")
        console.page.wait_for_selector(".action-why")
        assert f"anna may not: this needs read of {path}" in console.text(".action-why >> nth=0")
        button = console.page.get_by_text("disconnect billing", exact=True).first
        assert button.get_attribute("aria-disabled") == "true"
        button.focus()
        console.page.keyboard.press("Enter")
        assert console.page.locator("dialog").count() == 0


def test_a_refusal_is_told_as_it_came(browser: Browser) -> None:
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        console.allowed.append("status of 403")
        open_dialog(console, LINKS, DOWNGRADE)
        console.at.do(
            lambda fabric: fabric.denied.add("/amps/administrator/replication/NewYork-2/downgrade")
        )
        console.page.locator("dialog [type=submit]").evaluate(
            "(button) => button.form.requestSubmit()"
        )
        console.page.wait_for_selector("dialog [data-phase=failed], dialog .act-text")
        assert "anna" in console.text("dialog")


def test_a_client_that_was_disconnected_is_gone(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2, scenario="healthy")) as console:
        console.allowed.append("status of 404")
        console.open("#/client/billing")
        console.page.get_by_text("disconnect billing", exact=True).first.click()
        console.page.wait_for_selector(".risk li")
        console.page.click("dialog [type=submit]")
        console.page.wait_for_selector("dialog [data-phase=done]")
        assert len(console.at.do(lambda fabric: fabric.gone)) == 1


def test_a_dialog_keeps_what_it_was_opened_for(browser: Browser) -> None:
    """The row's button becomes another one by the action itself."""
    with browser.console(GeneratedFabric(scenario="healthy")) as console:
        open_dialog(console, LINKS, DOWNGRADE)
        console.do(lambda fabric: fabric.downgrade("NewYork-1~NewYork-2"))
        console.page.locator("#instance-links button:text-is('upgrade')").wait_for()
        assert console.text("dialog h2") == "downgrade NewYork-2 at NewYork-1?"
        assert console.text("dialog [type=submit]") == "downgrade NewYork-2"


def test_a_condition_that_comes_true_later_is_waited_for(browser: Browser) -> None:
    """Playwright's own wait evaluates text again, which the content policy forbids."""
    with browser.console(GeneratedFabric(2)) as console:
        console.open("#/")
        console.page.evaluate("() => { setTimeout(() => { window.__came = true; }, 100); }")
        console.until("() => window.__came === true")
