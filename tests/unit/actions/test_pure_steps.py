"""Steps that need only variables (services/actions/pure_steps.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.actions import pure_steps
from raylay.services.actions.model import ActionModule
from raylay.services.actions.pure_steps import PureSteps, check_expression, context_of
from raylay.services.actions.variables import Lookup, lookup
from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.registry import MessageTypes

WALL_US = 1_637_707_778_500_000


def steps() -> PureSteps:
    return PureSteps(MessageTypes(), BUILT_IN)


def step(module: str, *options: tuple[str, str]) -> ActionModule:
    return ActionModule("do", module, options)


def finder(**variables: str) -> Lookup:
    return lookup(variables, "london-1", WALL_US)


def extracted(*options: tuple[str, str], **variables: str) -> dict[str, str]:
    around = context_of(variables, "london-1", WALL_US)
    return steps().extracted(step("extract-values", *options), finder(**variables), around)


def translated(*options: tuple[str, str], **variables: str) -> dict[str, str]:
    return steps().translated(step("translate-data", *options), finder(**variables))


def is_true(condition: str, **variables: str) -> bool:
    module = ActionModule("if", "condition", (("Condition", condition),))
    around = context_of(variables, "london-1", WALL_US)
    return steps().is_true(module, finder(**variables), around)


@pytest.mark.covers("Actions", "Extract Values from a Message")
def test_values_of_a_message_become_variables() -> None:
    found = extracted(
        ("MessageType", "json"),
        ("Data", "{{AMPS_DATA}}"),
        ("Value", "NAME=CONCAT(/first, ' ', /last)"),
        ("Value", " PRICE = /price"),
        ("Value", "MISSING=/missing"),
        ("Value", "IS_OPEN=/open"),
        ("Value", "SAME=/first = 'Ada'"),
        AMPS_DATA='{"first": "Ada", "last": "Byron", "price": 1.5, "open": true}',
    )
    assert found == {
        "NAME": "Ada Byron",
        "PRICE": "1.5",
        "MISSING": "",
        "IS_OPEN": "1",
        "SAME": "1",
    }


def test_values_of_other_message_types_are_read() -> None:
    found = extracted(("MessageType", "{{T}}"), ("Data", "55=IBM\x01"), ("Value", "S=/55"), T="fix")
    assert found == {"S": "IBM"}


def test_without_data_nothing_is_extracted() -> None:
    assert extracted(("MessageType", "json"), ("Value", "NAME='x'")) == {}


@pytest.mark.covers("Actions", "Extract Values from a Message")
def test_data_that_are_no_message_fail_the_step() -> None:
    with pytest.raises(MessageTypeError, match="json"):
        extracted(("MessageType", "json"), ("Data", "{"), ("Value", "A=/a"))
    with pytest.raises(MessageTypeError, match="no message type"):
        extracted(("MessageType", "jsn"), ("Data", "{}"), ("Value", "A=/a"))


@pytest.mark.parametrize("value", ["/a", "=/a"])
def test_a_value_without_a_variable_fails_the_step(value: str) -> None:
    with pytest.raises(ValueError, match="expected VARIABLE=expression"):
        extracted(("MessageType", "json"), ("Data", "{}"), ("Value", value))


@pytest.mark.covers("Actions", "Translate Data Within an Action")
def test_the_first_case_that_has_the_data_translates_it() -> None:
    cases = (("Case", "credit_check=pending"), ("Case", "credit_check=other"))
    found = translated(("Data", "{{S}}"), ("Value", "STATE"), *cases, S="credit_check")
    assert found == {"STATE": "pending"}


@pytest.mark.covers("Actions", "Translate Data Within an Action")
def test_data_without_a_case_stay_unless_there_is_a_default() -> None:
    options = (("Data", "new"), ("Value", "STATE"), ("Case", "old=gone"))
    assert translated(*options) == {"STATE": "new"}
    assert translated(*options, ("Default", "{{D}}"), D="unknown") == {"STATE": "unknown"}
    assert translated(*options, ("Default", "")) == {"STATE": ""}


def test_a_variable_with_an_equals_sign_does_not_split_a_case() -> None:
    case = ("Case", "{{BEFORE}}=b=c")
    assert translated(("Data", "a=x"), ("Value", "V"), case, BEFORE="a=x") == {"V": "b=c"}


def test_a_case_without_an_equals_sign_fails_the_step() -> None:
    with pytest.raises(ValueError, match="expected found=given"):
        translated(("Data", "new"), ("Value", "STATE"), ("Case", "old"))


@pytest.mark.covers("Actions", "Increment Counter")
def test_counters_begin_at_one_and_keep_their_count() -> None:
    made = steps()
    count = step("increment-counter", ("Key", "of-{{WHO}}"), ("Value", "COUNT"))
    assert made.counted(count, finder(WHO="a")) == {"COUNT": "1"}
    assert made.counted(count, finder(WHO="b")) == {"COUNT": "1"}
    assert made.counted(count, finder(WHO="a")) == {"COUNT": "2"}
    assert made.counted(step("increment-counter", ("Key", "of-a")), finder()) == {}
    assert made.counted(count, finder(WHO="a")) == {"COUNT": "4"}


@pytest.mark.covers("Actions", "Increment Counter")
def test_there_may_be_only_so_many_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure_steps, "COUNTERS_MAX", 2)
    made = steps()
    count = step("increment-counter", ("Key", "{{WHO}}"), ("Value", "COUNT"))
    for who in "ab":
        made.counted(count, finder(WHO=who))
    with pytest.raises(ConfigurationError, match="the counter 'c' would be one more than"):
        made.counted(count, finder(WHO="c"))
    assert made.counted(count, finder(WHO="b")) == {"COUNT": "2"}


@pytest.mark.covers("Actions", "If: Based on an Expression")
@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("'{{AMPS_CLIENT_NAME}}' LIKE '^desk'", True),
        ("CLIENT_NAME() = 'desk-1' AND USER() = 'ada'", True),
        ("TOPIC_NAME() = 'orders' AND BOOKMARK() = '1|2|'", True),
        ("CORRELATION_ID() = 'c' AND CONNECTION_NAME() = 'desk-1-2'", True),
        ("REMOTE_ADDRESS() = 'host:1'", True),
        ("MESSAGE_SIZE() = 4", True),
        ("AMPS_INSTANCE_NAME() = 'london-1'", True),
        ("UNIX_TIMESTAMP() = 1637707778.5", True),
        ("{{COUNT}} >= 10", False),
        ("/no/message IS NULL", True),
    ],
)
def test_a_condition_knows_what_began_the_run(condition: str, wanted: bool) -> None:
    variables = {
        "AMPS_CLIENT_NAME": "desk-1",
        "AMPS_AUTHENTICATION_ID": "ada",
        "AMPS_CONNECTION_NAME": "desk-1-2",
        "AMPS_REPLICATION_REMOTE_ADDRESS": "host:1",
        "AMPS_CORRELATION_ID": "c",
        "AMPS_TOPIC": "orders",
        "AMPS_BOOKMARK": "1|2|",
        "AMPS_DATA": "ab\udcc3\udca9",
        "COUNT": "9",
    }
    assert is_true(condition, **variables) is wanted


TEXTS = st.one_of(
    st.sampled_from(["", "0", "-1", "1.50", "1e3", "a", "a' = 'a' OR 'b", "9223372036854775808"]),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.text(st.characters(codec="utf-8"), max_size=5),
)
CONDITIONS = (
    "{{A}} > {{B}}",
    "{{A}} = '{{B}}'",
    "'{{A}}' = \"{{B}}\" OR r'{{A}}' < '{{B}}'",
    "'{{A}}' IS NULL",
    "{{A}} + 1 = {{B}} - {{A}}",
    "LENGTH('{{A}}') > LENGTH({{B}})",
    "'{{A}}' LIKE '{{B}}'",
    "'{{A}}' IN ('a', '{{B}}', {{B}})",
    "NOT ({{A}} BETWEEN 0 AND {{B}})",
    "CONCAT('{{A}}', {{B}}) = 'x{{A}}'",
)


@pytest.mark.parametrize("condition", CONDITIONS)
@settings(derandomize=True)
@given(a=TEXTS, b=TEXTS)
def test_variables_as_fields_are_what_their_texts_are(condition: str, a: str, b: str) -> None:
    made, variables = steps(), {"A": a, "B": b}
    module = ActionModule("if", "condition", (("Condition", condition),))
    around = context_of(variables, "london-1", WALL_US)

    def asked() -> bool | str:
        try:
            return made.is_true(module, finder(**variables), around)
        except ExpressionError:
            return "no expression"

    found = asked()
    made._conditions[condition] = None
    assert found == asked()


def test_conditions_are_compiled_once_where_they_can_be() -> None:
    made = steps()
    for condition in CONDITIONS:
        module = ActionModule("if", "condition", (("Condition", condition),))
        made.is_true(module, finder(A="1", B="2"), context_of({}, "", 0))
    kept = [condition for condition, found in made._conditions.items() if found is not None]
    assert kept == [each for each in CONDITIONS if "LIKE" not in each and "x{{" not in each]


def test_compiled_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure_steps, "EVALUATIONS_MAX", 2)
    made = steps()
    options = (("MessageType", "json"), ("Data", "{}"), ("Value", "V={{N}} + 1"))
    for number in (1, 2, 2, 3, 1):
        module, find = step("extract-values", *options), finder(N=str(number))
        found = made.extracted(module, find, context_of({}, "", 0))
        assert found == {"V": str(number + 1)}
        assert len(made._evaluations) <= 2


def test_a_message_that_is_not_there_has_no_size() -> None:
    assert is_true("MESSAGE_SIZE() IS NULL")


def test_an_expression_is_checked_without_its_variables() -> None:
    check_expression("'{{A}}' LIKE 'x' AND {{B}} > 5 AND /{{C}} = 1")
    with pytest.raises(ExpressionError, match="column"):
        check_expression("'{{A}}' LIKE")
    with pytest.raises(ExpressionError, match="UUID7"):
        check_expression("UUID7() = '{{A}}'")
