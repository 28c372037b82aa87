"""The choice of the occurrences that start an action (services/actions/matching.py)."""

from __future__ import annotations

import pytest

from raylay.services.actions.matching import OnMatcher
from raylay.services.actions.model import ActionModule, Occurrence
from raylay.services.errors import ConfigurationError


def on(module: str, **options: str) -> ActionModule:
    return ActionModule("on", module, tuple(options.items()))


def starts(module: ActionModule, topic: str = "", message_type: str = "", **told: str) -> bool:
    found = Occurrence(module.module, told, topic, message_type)
    return OnMatcher(module).matches(found)


@pytest.mark.covers("Actions", "an `On` chooses by topic, type, reason, signal, path, event")
@pytest.mark.parametrize(
    ("option", "topic", "wanted"),
    [
        ("", "orders", True),
        ("orders", "orders", True),
        ("orders", "old-orders", False),
        ("^orders$", "orders", True),
        ("^orders", "orders/london", True),
        ("ord.*rs", "old-orders", True),
        ("ord.rs", "orders", False),
        ("orders", "^orders", False),
        ("^orders", "^orders", True),
    ],
)
def test_a_name_means_itself_and_an_expression_what_it_finds(
    option: str, topic: str, wanted: bool
) -> None:
    assert starts(on("subscribe", Topic=option), topic) is wanted
    assert starts(on("subscribe", Topic=option), AMPS_TOPIC=topic) is wanted


@pytest.mark.covers("Actions", "an `On` chooses by topic, type, reason, signal, path, event")
def test_the_topic_of_a_sow_is_a_name() -> None:
    for module in ("sow-expire-message", "sow-delete-message"):
        assert starts(on(module, Topic="^a.b"), "^a.b")
        assert not starts(on(module, Topic="^a.b"), "axb")


def test_a_message_type_that_nobody_knows_fits() -> None:
    module = on("subscribe", Topic="orders", MessageType="json")
    assert starts(module, "orders")
    assert starts(module, "orders", "json")
    assert not starts(module, "orders", "fix")
    assert not starts(module, "orders", AMPS_MESSAGE_TYPE="fix")
    assert starts(module, "orders", AMPS_MESSAGE_TYPE="fix,json")


@pytest.mark.covers("Actions", "an `On` chooses by topic, type, reason, signal, path, event")
def test_a_reason_is_one_of_a_list() -> None:
    module = on("sow-expire-message", Topic="q", Reason="time_limit, max_cancels")
    assert starts(module, "q", AMPS_REASON="time_limit")
    assert starts(module, "q", AMPS_REASON="max_deliveries,max_cancels")
    assert not starts(module, "q", AMPS_REASON="forced_expire")
    assert not starts(module, "q")
    assert starts(on("sow-expire-message", Topic="q"), "q", AMPS_REASON="forced_expire")


@pytest.mark.covers("Actions", "an `On` chooses by topic, type, reason, signal, path, event")
@pytest.mark.parametrize("written", ["SIGUSR1", "USR1", "sigusr1"])
def test_a_signal_has_its_name_with_or_without_sig(written: str) -> None:
    module = on("signal", Signal=written)
    assert starts(module, AMPS_SIGNAL="SIGUSR1")
    assert not starts(module, AMPS_SIGNAL="SIGUSR2")
    assert not starts(module)


@pytest.mark.covers("Actions", "an `On` chooses by topic, type, reason, signal, path, event")
def test_a_request_has_its_path_and_an_event_its_name() -> None:
    assert starts(on("admin", Path="archive"), AMPS_ADMIN_PATH="archive")
    assert not starts(on("admin", Path="archive"), AMPS_ADMIN_PATH="archives")
    assert starts(on("execute-event", Event="late"), AMPS_EVENT="late")
    assert not starts(on("execute-event", Event="late"), AMPS_EVENT="later")


def test_a_message_module_begins_by_its_own_trigger() -> None:
    module = on("publish-message", Topic="orders", Filter="/a = 1")
    other = on("publish-message", Topic="orders", Filter="/a = 2")
    matcher = OnMatcher(module)
    assert matcher.matches(Occurrence("publish-message", {}, "orders", on=module))
    assert not matcher.matches(Occurrence("publish-message", {}, "orders", on=other))
    assert not matcher.matches(Occurrence("publish-message", {}, "orders"))


def test_an_occurrence_that_is_for_another_module_does_not_start_it() -> None:
    matcher = OnMatcher(on("startup"))
    assert matcher.matches(Occurrence("startup", {}))
    assert not matcher.matches(Occurrence("startup", {}, on=on("startup", Name="other")))


def test_a_topic_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Topic"):
        OnMatcher(on("subscribe", Topic="orders("))
