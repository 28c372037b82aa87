"""Triggers that begin with messages (services/actions/message_triggers.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.actions import message_triggers as rules
from raylay.services.actions.engine import DEPTH_MAX
from raylay.services.actions.message_triggers import (
    ConditionTrigger,
    MessageTrigger,
    OofTrigger,
    PublishTrigger,
    TriggerMessage,
    TriggerSubscription,
    correlation_of,
    depth_of,
    message_triggers,
    subscription_options,
)
from raylay.services.actions.model import ActionDefinition, ActionModule, Occurrence
from raylay.services.errors import ConfigurationError

SECOND = 1_000_000
WALL_US = 1_637_707_778_000_000


def on(module: str, **options: str) -> ActionModule:
    return ActionModule(
        "on", module, (("Topic", "orders"), ("MessageType", "json"), *options.items())
    )


def message(kind: str = "publish", key: bytes = b"1", body: bytes = b"{}") -> TriggerMessage:
    return TriggerMessage(
        kind, "orders", "json", body, key=key, bookmark="7|1|", timestamp_us=WALL_US
    )


def oof(reason: str, key: bytes = b"1", body: bytes = b"gone") -> TriggerMessage:
    return replace(message("oof", key, body), reason=reason)


def told(trigger: MessageTrigger, *messages: TriggerMessage, now_us: int = 0) -> list[Occurrence]:
    return [each for one in messages for each in trigger.message(one, now_us, WALL_US + now_us)]


def keys(occurrences: list[Occurrence]) -> list[str]:
    return [each.variables["AMPS_SOW_KEY"] for each in occurrences]


def timeout(**options: str) -> ConditionTrigger:
    return ConditionTrigger(on("message-condition-timeout", **{"Duration": "10s", **options}))


def alert(**options: str) -> ConditionTrigger:
    events = {"OOFEvent": "done", "TimeoutEvent": "late", "EventVariable": "WHAT"}
    return ConditionTrigger(on("alert", **{"Duration": "10s", **events, **options}))


# Messages that are published.


@pytest.mark.covers("Actions", "On Message Published to AMPS")
def test_a_published_message_begins_with_its_variables() -> None:
    trigger = PublishTrigger(on("publish-message", Filter="/a = 1", Options="select=[-/,+/a],oof"))
    assert trigger.subscription() == TriggerSubscription(
        "subscribe", "orders", "json", {"filter": "/a = 1", "select": "[-/,+/a]", "oof": True}
    )
    (made,) = told(trigger, replace(message(key=b"", body=b"\xff"), client_name="desk"))
    assert (made.kind, made.topic, made.message_type, made.depth) == (
        "publish-message",
        "orders",
        "json",
        0,
    )
    assert made.on == trigger.on
    assert made.variables == {
        "AMPS_TOPIC": "orders",
        "AMPS_MESSAGE_TYPE": "json",
        "AMPS_DATA": "\udcff",
        "AMPS_DATA_LENGTH": "1",
        "AMPS_BOOKMARK": "7|1|",
        "AMPS_TIMESTAMP": "2021-11-23T22:49:38.000000Z",
        "AMPS_CLIENT_NAME": "desk",
        "AMPS_CORRELATION_ID": "",
    }


def test_only_publishes_begin_it() -> None:
    trigger = PublishTrigger(on("publish-message"))
    assert told(trigger, oof("match"), message("sow")) == []
    assert trigger.due(0) == []
    assert trigger.next_due_us() is None
    assert told(trigger, replace(message(), timestamp_us=0))[0].variables["AMPS_TIMESTAMP"] == ""


@pytest.mark.covers("Actions", "On Message Published to AMPS")
@pytest.mark.parametrize(
    ("source", "is_local", "wanted"),
    [
        ("", True, 1),
        ("all", False, 1),
        ("local", True, 1),
        ("local", False, 0),
        ("replicated", True, 0),
        ("replicated", False, 1),
        ("local", None, 1),
    ],
)
def test_messages_of_other_sources_do_not_begin_it(
    source: str, is_local: bool | None, wanted: int
) -> None:
    trigger = PublishTrigger(on("publish-message", MessageSource=source))
    assert len(told(trigger, replace(message(), is_local=is_local))) == wanted


def test_a_source_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected all, local or replicated"):
        PublishTrigger(on("publish-message", MessageSource="remote"))


def test_the_options_of_a_subscription_are_known() -> None:
    assert subscription_options("") == subscription_options("timestamp, bookmark,send_keys ") == {}
    assert subscription_options("delta,no_empties, no_sowkey,non_regex_topic") == {
        "delta": True,
        "no_empties": True,
        "no_sowkey": True,
        "non_regex_topic": True,
    }


@pytest.mark.parametrize("text", ["rate=5", "select", "oof=1", "bookmark=0", "conflation=1s"])
def test_an_option_that_is_unknown_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Options has"):
        subscription_options(text)


@pytest.mark.parametrize("text", ["=", "select=[-/", "oof;delta"])
def test_options_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected names such as oof"):
        subscription_options(text)


@pytest.mark.covers("Actions", "loops end: over events, topics and other instances")
def test_a_message_of_an_action_carries_how_many_led_to_it() -> None:
    assert depth_of(correlation_of(3)) == 3
    assert depth_of(b"") == depth_of(b"raylay-action:") == depth_of(b"raylay-action:12345") == 0
    trigger = PublishTrigger(on("publish-message"))
    assert told(trigger, replace(message(), correlation=correlation_of(5)))[0].depth == 5


@pytest.mark.covers("Actions", "loops end: over events, topics and other instances")
def test_a_loop_over_six_instances_ends_after_some_hundred_messages() -> None:
    trigger = PublishTrigger(on("publish-message"))
    waiting, published = [0], 0
    while waiting:
        depth = waiting.pop()
        for instance in range(6):
            found = replace(message(), correlation=correlation_of(depth), is_local=not instance)
            begun = told(trigger, found)[0].depth
            if begun < DEPTH_MAX:
                published += 1
                waiting.append(begun + 1)
        assert published < 10_000
    assert published == 708


# Records that leave the focus.


@pytest.mark.covers("Actions", "On OOF Message")
def test_a_record_that_leaves_the_focus_begins_by_its_reason() -> None:
    trigger = OofTrigger(on("oof-message", Filter="/a = 1"), keeps_previous=False)
    assert trigger.subscription() == TriggerSubscription(
        "subscribe", "orders", "json", {"filter": "/a = 1", "oof": True}
    )
    assert told(trigger, message()) == []
    reasons = ("match", "deleted", "expired", "entitlement")
    found = told(trigger, *[oof(reason) for reason in reasons])
    assert [each.variables["AMPS_REASON"] for each in found] == ["match", "delete", "expire"]
    before = [each.variables["AMPS_PREVIOUS_DATA"] for each in found]
    assert before == ["", "gone", "gone"]
    assert [each.variables["AMPS_DATA"] for each in found] == ["gone"] * 3


@pytest.mark.covers("Actions", "On OOF Message")
@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        ("match", ["match"]),
        ("delete", ["delete"]),
        ("expire, match", ["match", "expire"]),
        ("all", ["match", "delete", "expire"]),
    ],
)
def test_the_type_chooses_the_reasons(types: str, wanted: list[str]) -> None:
    trigger = OofTrigger(on("oof-message", Type=types), keeps_previous=True)
    found = told(trigger, oof("match"), oof("deleted"), oof("expired"))
    assert [each.variables["AMPS_REASON"] for each in found] == wanted


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Type is 'deleted'"):
        OofTrigger(on("oof-message", Type="deleted"), keeps_previous=False)


@pytest.mark.covers("Actions", "On OOF Message")
def test_the_record_as_it_was_is_kept_where_it_is_asked_for() -> None:
    trigger = OofTrigger(on("oof-message"), keeps_previous=True)
    assert trigger.subscription().command == "sow_and_subscribe"
    told(trigger, message("sow", body=b"first"), message(body=b"second"), message(key=b"2"))
    (made,) = told(trigger, oof("match", body=b"now"))
    assert made.variables["AMPS_DATA"] == "now"
    assert made.variables["AMPS_PREVIOUS_DATA"] == "second"
    assert made.variables["AMPS_PREVIOUS_DATA_LENGTH"] == "6"
    trigger.restart()
    (made,) = told(trigger, oof("match", key=b"2"))
    assert made.variables["AMPS_PREVIOUS_DATA"] == ""


def test_records_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TRACKED_BYTES_MAX", 2 * rules.RECORD_BYTES + 10)
    trigger = OofTrigger(on("oof-message"), keeps_previous=True)
    told(trigger, *[message(key=key) for key in (b"1", b"2", b"3")])
    assert trigger.take_untracked() == 1
    told(trigger, oof("match"), message(key=b"3"))
    assert trigger.take_untracked() == 0
    told(trigger, message(key=b"4"))
    trigger.restart()
    assert trigger.take_untracked() == 0
    monkeypatch.setattr(rules, "TRACKED_MAX", 1)
    told(trigger, *[message(key=key) for key in (b"1", b"2")])
    assert trigger.take_untracked() == 1


# Records that stay in a condition.


@pytest.mark.covers("Actions", "On Message Condition Timeout")
def test_a_record_that_stays_in_the_condition_begins_it_once() -> None:
    trigger = timeout(Filter="/status = 'new'")
    assert trigger.subscription() == TriggerSubscription(
        "sow_and_subscribe",
        "orders",
        "json",
        {"filter": "/status = 'new'", "oof": True, "non_regex_topic": True},
    )
    assert told(trigger, message()) == []
    assert trigger.next_due_us() == 10 * SECOND
    assert trigger.due(10 * SECOND - 1) == []
    (made,) = trigger.due(10 * SECOND)
    assert (made.kind, made.on) == ("message-condition-timeout", trigger.on)
    assert made.variables["AMPS_SOW_KEY"] == "1"
    assert made.variables["AMPS_DATA"] == "{}"
    assert told(trigger, message()) == []
    assert trigger.due(100 * SECOND) == []
    assert trigger.next_due_us() is None


@pytest.mark.covers("Actions", "On Message Condition Timeout")
def test_a_record_that_leaves_in_time_begins_nothing() -> None:
    trigger = timeout()
    assert told(trigger, message(), oof("match"), oof("match"), message(key=b"2")) == []
    assert keys(trigger.due(10 * SECOND)) == ["2"]


def test_a_record_that_comes_back_has_its_whole_time_again() -> None:
    trigger = timeout()
    told(trigger, message())
    assert keys(trigger.due(10 * SECOND)) == ["1"]
    told(trigger, oof("match"), message(), now_us=15 * SECOND)
    assert trigger.next_due_us() == 25 * SECOND
    assert keys(trigger.due(25 * SECOND)) == ["1"]


def test_a_change_within_the_condition_does_not_prolong_it() -> None:
    trigger = timeout()
    told(trigger, message(body=b"first"))
    told(trigger, message(body=b"second"), now_us=9 * SECOND)
    (made,) = trigger.due(10 * SECOND)
    assert made.variables["AMPS_DATA"] == "second"


@pytest.mark.covers("Actions", "On Message Condition Timeout")
def test_a_record_that_is_there_counts_from_when_it_was_published() -> None:
    trigger = timeout()
    rows = [
        replace(message("sow", key), timestamp_us=WALL_US - age * SECOND)
        for key, age in ((b"new", 4), (b"old", 8), (b"late", 15), (b"ahead", -5))
    ]
    told(trigger, *rows)
    told(trigger, message(key=b"fresh"), now_us=1 * SECOND)
    assert keys(trigger.due(0)) == ["late"]
    assert trigger.next_due_us() == 2 * SECOND
    assert keys(trigger.due(10 * SECOND)) == ["old", "new", "ahead"]
    assert keys(trigger.due(11 * SECOND)) == ["fresh"]


def test_a_row_that_left_is_not_due() -> None:
    trigger = timeout()
    told(trigger, message("sow"), oof("match"))
    assert trigger.next_due_us() is None
    told(trigger, message("sow"), oof("deleted"), message(), now_us=5 * SECOND)
    assert trigger.due(10 * SECOND) == []
    assert keys(trigger.due(15 * SECOND)) == ["1"]


def test_no_more_are_given_than_can_be_taken() -> None:
    trigger = timeout()
    told(trigger, *[message("sow", b"%d" % number) for number in range(3)], message(key=b"3"))
    assert keys(trigger.due(10 * SECOND, 2)) == ["0", "1"]
    assert trigger.due(10 * SECOND, 0) == []
    assert trigger.next_due_us() == 10 * SECOND
    assert keys(trigger.due(10 * SECOND)) == ["2", "3"]


def test_a_new_subscription_tells_all_records_again() -> None:
    trigger = timeout()
    told(trigger, message(), message("sow", b"2"))
    trigger.due(10 * SECOND, 1)
    trigger.restart()
    assert trigger.next_due_us() is None
    told(trigger, message("sow"), now_us=20 * SECOND)
    assert keys(trigger.due(20 * SECOND)) == ["1"]


def test_records_that_are_watched_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TRACKED_BYTES_MAX", 2 * rules.RECORD_BYTES + 100)
    trigger = timeout()
    told(trigger, message(body=b"x" * 90), message(key=b"2"), message(key=b"3"))
    assert trigger.take_untracked() == 1
    # A body that shrinks, and a record that was told, make room.
    told(trigger, message(body=b""), oof("match", b"2"), message(key=b"4", body=b"x" * 90))
    assert trigger.take_untracked() == 0
    trigger.due(10 * SECOND)
    told(trigger, oof("match"), oof("match", b"4"), message(key=b"5", body=b"x" * 99))
    assert trigger.take_untracked() == 0
    monkeypatch.setattr(rules, "TRACKED_MAX", 1)
    told(trigger, message(key=b"6", body=b""))
    assert trigger.take_untracked() == 1


@pytest.mark.parametrize("duration", ["", "soon"])
def test_a_timeout_needs_a_duration(duration: str) -> None:
    with pytest.raises(ValueError, match="expected an interval"):
        timeout(Duration=duration)


def test_the_depth_of_a_message_stays_with_its_record() -> None:
    trigger = timeout()
    told(trigger, replace(message(), correlation=correlation_of(2)))
    assert trigger.due(10 * SECOND)[0].depth == 2


# Alerts.


@pytest.mark.covers("Actions", "On Message State Change")
def test_an_alert_has_one_of_its_two_events() -> None:
    trigger = alert()
    assert told(trigger, message(), message(key=b"2")) == []
    (made,) = told(trigger, oof("match"), now_us=9 * SECOND)
    assert made.kind == "alert"
    assert (made.variables["WHAT"], made.variables["AMPS_REASON"]) == ("done", "match")
    (made,) = trigger.due(10 * SECOND)
    assert (made.variables["WHAT"], made.variables["AMPS_SOW_KEY"]) == ("late", "2")
    assert told(trigger, oof("deleted", b"2"), oof("match", b"unknown")) == []


@pytest.mark.covers("Actions", "On Message State Change")
def test_an_alert_without_duration_tells_what_leaves() -> None:
    trigger = alert(Duration="", EventVariable="")
    told(trigger, message(), message("sow", b"2"))
    assert trigger.next_due_us() is None
    found = told(trigger, oof("expired"), oof("entitlement", b"2"))
    assert [each.variables["AMPS_EVENT"] for each in found] == ["done", "done"]
    assert [each.variables["AMPS_REASON"] for each in found] == ["expire", "entitlement"]


# The triggers of all actions.


def test_one_trigger_serves_all_actions_with_its_module() -> None:
    publish, gone = on("publish-message"), on("oof-message")
    echo = ActionModule("do", "echo-message", (("Message", "{{AMPS_DATA}}"),))
    before = ActionModule("do", "echo-message", (("Message", "{{AMPS_PREVIOUS_DATA}}"),))
    actions = (
        ActionDefinition("one", (publish, on("startup")), (echo,)),
        ActionDefinition("two", (publish, gone), (echo,)),
        ActionDefinition("three", (gone, on("alert", Duration="1s")), (before,)),
    )
    found = message_triggers(actions)
    assert [type(each) for each in found] == [PublishTrigger, OofTrigger, ConditionTrigger]
    assert found[1].subscription().command == "sow_and_subscribe"
    (found_one,) = message_triggers((ActionDefinition("two", (gone,), (echo,)),))
    assert found_one.subscription().command == "subscribe"


@pytest.mark.parametrize("module", ["execute-event", "call-function"])
def test_a_step_that_hands_on_all_variables_needs_the_record_as_it_was(module: str) -> None:
    gone = on("oof-message")
    action = ActionDefinition("one", (gone,), (ActionModule("do", module),))
    assert message_triggers((action,))[0].subscription().command == "sow_and_subscribe"
