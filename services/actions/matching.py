"""Matching of occurrences with the options of `on` modules (behaviour.md 8.1)."""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.actions.model import ActionModule, Occurrence
from raylay.services.actions.option_text import words
from raylay.services.messages.topics import compile_regex, is_regex

TOPIC_PATTERNS = frozenset(
    ("subscribe", "unsubscribe", "publish-message", "deliver-message", "oof-message")
)
"""Modules whose topic is a regular expression; elsewhere it is a name."""
MESSAGE_MODULES = frozenset(
    ("publish-message", "oof-message", "message-condition-timeout", "alert")
)
"""Modules that begin with messages of a subscription (message_triggers.py)."""

Test = Callable[[Occurrence], bool]


class OnMatcher:
    """Says which occurrences an `on` module waits for.

    Args:
        on: the module.

    Raises:
        ConfigurationError: its topic is no regular expression.
    """

    __slots__ = ("_tests", "on")

    def __init__(self, on: ActionModule) -> None:
        self.on = on
        self._tests: list[Test] = []
        if on.module in MESSAGE_MODULES:
            # Its trigger has compared everything, the filter included.
            self._tests.append(lambda occurrence: occurrence.on == on)
            return
        for option, test in (
            ("Topic", self._topic),
            ("MessageType", self._message_type),
            ("Reason", _reason),
            ("Signal", _signal),
            ("Path", lambda text: _equal("AMPS_ADMIN_PATH", text)),
            ("Event", lambda text: _equal("AMPS_EVENT", text)),
        ):
            text = on.option(option)
            if text:
                self._tests.append(test(text))

    def matches(self, occurrence: Occurrence) -> bool:
        """Returns whether an occurrence of the module's kind is one that it waits for."""
        if occurrence.on is not None and occurrence.on != self.on:
            return False
        return all(test(occurrence) for test in self._tests)

    def _topic(self, text: str) -> Test:
        if self.on.module not in TOPIC_PATTERNS:
            return lambda occurrence: _topic_of(occurrence) == text
        search = topic_search(text)
        return lambda occurrence: search(_topic_of(occurrence))

    def _message_type(self, text: str) -> Test:
        # An occurrence may have no message type, or an unknown one; a subscription may have
        # several.
        def test(occurrence: Occurrence) -> bool:
            found = occurrence.message_type or occurrence.variables.get("AMPS_MESSAGE_TYPE", "")
            return not found or text in found.split(",")

        return test


def topic_search(text: str) -> Callable[[str], bool]:
    """Returns a function that says whether a topic is meant by an option: a name means itself, a
    regular expression each topic in which it is found, and the text itself, which a client may
    have subscribed to.

    Raises:
        ConfigurationError: it is no regular expression.
    """
    if not is_regex(text):
        return lambda topic: topic == text
    expression = compile_regex(text, "Topic")
    return lambda topic: topic == text or bool(expression.search(topic))


def _topic_of(occurrence: Occurrence) -> str:
    return occurrence.topic or occurrence.variables.get("AMPS_TOPIC", "")


def _equal(variable: str, text: str) -> Test:
    return lambda occurrence: occurrence.variables.get(variable, "") == text


def _reason(text: str) -> Test:
    wanted = frozenset(words(text))
    return lambda occurrence: (
        not wanted.isdisjoint(words(occurrence.variables.get("AMPS_REASON", "")))
    )


def _signal(text: str) -> Test:
    wanted = text.strip().upper().removeprefix("SIG")

    def test(occurrence: Occurrence) -> bool:
        return occurrence.variables.get("AMPS_SIGNAL", "").removeprefix("SIG") == wanted

    return test
