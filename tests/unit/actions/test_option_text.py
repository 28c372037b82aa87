"""The texts of the options of actions (services/actions/option_text.py)."""

from __future__ import annotations

import pytest

from raylay.services.actions import option_text
from raylay.services.actions.modules import MODULES, OptionDefinition
from raylay.services.actions.option_text import text_problem
from raylay.services.replication.timetable import Occasion


def test_what_the_texts_say() -> None:
    assert option_text.interval_us("1.5s") == 1_500_000
    assert option_text.interval_us("1w") == 7 * 86_400_000_000
    assert option_text.occasion(" 4h ") == Occasion(4 * 3_600_000)
    assert option_text.occasion("10us") == Occasion(1)
    assert option_text.occasion("Saturday at 11:00Z") == Occasion(at="Saturday at 11:00Z")
    assert option_text.percent("90%") == 90
    assert option_text.percent("2.5") == 2.5
    assert option_text.flag(" True ") is True
    assert option_text.flag("disabled") is False
    assert option_text.words("a, b,,") == ("a", "b")
    assert option_text.assignment("STATUS = /status = 1") == ("STATUS", "/status = 1")
    assert option_text.case("in progress=pending") == ("in progress", "pending")
    assert option_text.case("=none") == ("", "none")


WRONG = [
    ("interval", "5", "an interval such as 500ms"),
    ("schedule", "never", "'Saturday at 11:00', got 'never'"),
    ("schedule", "0s", "expected an interval such as 15s"),
    ("percent", "101%", "a share such as 90%"),
    ("percent", "full", "a share such as 90%"),
    ("flag", "maybe", "expected true or false, got 'maybe'"),
    ("number", "few", "a whole number"),
    ("assignment", "/status", "expected VARIABLE=expression"),
    ("assignment", "A B=/c", "expected VARIABLE=expression"),
    ("assignment", "A= ", "expected VARIABLE=expression"),
    ("case", "a", "expected found=given"),
    ("topics", "a(", "'a(' cannot be used as a regular expression"),
    ("topic", "^a", "expected the name of a topic"),
    ("signal", "SIGKILL", "expected a signal such as SIGUSR1"),
    ("signal", "SIGQUIT", "cannot be given another meaning"),
    ("variable", "A-B", "the name of a variable"),
    ("name", "a/b", "a name without spaces and /"),
    ("function", "print", "package.module:function"),
    ("interval", " ", "expected a text, got none"),
]


@pytest.mark.parametrize(("kind", "text", "told"), WRONG)
def test_a_wrong_text_is_told(kind: str, text: str, told: str) -> None:
    option = OptionDefinition("Option", kind, "", required=True)  # type: ignore[arg-type]
    assert told in text_problem(option, text)
    assert text_problem(option, f"{text}{{{{VARIABLE}}}}") == "", "nobody knows yet"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("interval", "5s"), ("schedule", "00:32"), ("percent", "9%"), ("flag", "no")),
        *(("number", "10k"), ("assignment", "A=/b"), ("case", "a="), ("topics", "^a")),
        *(("topics", "a"), ("topic", "a.b"), ("signal", "SIGUSR1"), ("variable", "A_1")),
        *(("name", "archive_journals"), ("function", "os.path:join"), ("function", "a.b:C.d")),
        *(("text", ""), ("filter", "(("), ("path", "/tmp"), ("message_type", "json")),
        *(("pattern", "*.log"), ("message_types", "json")),
    ],
)
def test_a_right_text_is_not(kind: str, text: str) -> None:
    option = OptionDefinition("Option", kind, "", required=True)  # type: ignore[arg-type]
    assert text_problem(option, text) == ""


def test_choices() -> None:
    (reason,) = (
        each for each in MODULES["on", "sow-expire-message"].options if each.name == "Reason"
    )
    assert text_problem(reason, "time_limit, forced_expire") == ""
    assert "max_cancels or max_deliveries, got 'late'" in text_problem(reason, "time_limit,late")
    source = MODULES["on", "publish-message"].option("MessageSource")
    assert source is not None
    assert "expected all, local or replicated, got 'here'" in text_problem(source, "here")
