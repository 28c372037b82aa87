"""Variables and their expansion (services/actions/variables.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.actions.variables import (
    EXPANDED_CHARACTERS_MAX,
    Lookup,
    built_in,
    expand,
    expand_command,
    expand_expression,
    expand_filter,
    expand_pattern,
    lookup,
    names_in,
)
from raylay.services.errors import ConfigurationError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.messages.lossless_text import bytes_of, text_of

WALL_US = 1_637_707_778_344_251


def finder(**variables: str) -> Lookup:
    return lookup(variables, "london-1", WALL_US)


def is_true(template: str, **variables: str) -> bool:
    found = expression(expand_expression(template, finder(**variables)))
    return found.matches({"price": 7}, NO_CONTEXT)


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_an_option_has_the_texts_of_its_variables_and_nothing_for_the_others() -> None:
    assert expand("{{A}}-{{B}}-{{A}}", finder(A="1")) == "1--1"
    assert expand("nothing to expand } {", finder()) == "nothing to expand } {"
    assert expand('{"a":{"b":{{A}}}}', finder(A="1")) == '{"a":{"b":1}}'


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_every_run_has_the_built_in_variables() -> None:
    found = "{{AMPS_INSTANCE_NAME}} {{AMPS_UNIX_TIMESTAMP}} {{AMPS_DATETIME}}"
    assert expand(found, finder()) == "london-1 1637707778 2021-11-23T22:49:38.344251Z"
    assert expand("{{AMPS_BYTE_01}}{{AMPS_BYTE_7f}}", finder()) == "\x01\x7f"
    assert bytes_of(expand("{{AMPS_BYTE_C3}}{{AMPS_BYTE_A9}}", finder())) == "é".encode()
    assert built_in("AMPS_BYTE_1", "", 0) is None


def test_a_variable_of_the_run_hides_a_built_in_one() -> None:
    assert expand("{{AMPS_DATETIME}}", finder(AMPS_DATETIME="today")) == "today"


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert expand("{{A}}", finder(A="{{B}}", B="secret")) == "{{B}}"
    assert expand_expression("'{{A}}' = 'x'", finder(A="{{B}}", B="x")) == "'{{B}}' = 'x'"


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
@given(st.binary(max_size=50))
def test_any_bytes_go_through_a_variable_unchanged(data: bytes) -> None:
    assert bytes_of(expand("{{DATA}}", finder(DATA=text_of(data)))) == data


def test_an_option_that_expands_to_too_much_is_refused() -> None:
    half = "x" * (EXPANDED_CHARACTERS_MAX // 2 + 1)
    with pytest.raises(ConfigurationError, match="expands to"):
        expand("{{A}}{{A}}", finder(A=half))
    with pytest.raises(ConfigurationError, match="expands to"):
        expand_expression("'{{A}}' = '{{A}}'", finder(A=half))


@pytest.mark.covers("Actions", "If: Based on an Expression")
@pytest.mark.parametrize(
    ("template", "value", "wanted"),
    [
        ("'{{V}}' LIKE 'important'", "an important one", True),
        ("'{{V}}' LIKE 'important'", "another", False),
        ('"client {{V}}" = "client it\'s"', "it's", True),
        ("r'C:\\{{V}}' = 'C:\\\\it\\'s'", "it's", True),
        ("r'no variable' = 'no variable' AND {{V}} = 1", "1", True),
        ("{{V}} > 5", "7", True),
        ("{{V}} > -5", "-3", True),
        ("1 -{{V}} = 4", "-3", True),
        ("{{V}} > 5", "", False),
        ("{{V}} = 'open'", "open", True),
        ("/{{V}} = 7", "price", True),
        ("'{{V}}' = 'back\\\\slash'", "back\\slash", True),
    ],
)
def test_a_variable_in_an_expression_is_a_value(template: str, value: str, wanted: bool) -> None:
    assert is_true(template, V=value) is wanted


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
@pytest.mark.parametrize(
    "template", ["'{{V}}' = 'x'", '"{{V}}" = "x"', "r'{{V}}' = 'x'", "{{V}} = 'x'"]
)
@pytest.mark.parametrize(
    "value",
    ["a' = 'a' OR 'b", 'a" = "a" OR "b', "\\", "\\' = 'a' OR 1 = 1 OR 'a", "1 = 1 OR 1"],
)
def test_a_variable_cannot_change_what_a_condition_asks(template: str, value: str) -> None:
    assert is_true(template, V=value) is False


@given(st.text(max_size=20))
def test_a_text_in_an_expression_equals_itself_only(value: str) -> None:
    safe = value.encode("utf-8", "replace").decode()
    asked = expression(expand_expression("/v = '{{V}}'", finder(V=safe)))
    # An empty text is NULL (behaviour.md 5.1).
    assert asked.matches({"v": safe}, NO_CONTEXT) is bool(safe)
    assert asked.matches({"v": safe + "x"}, NO_CONTEXT) is False


def test_the_names_in_an_option_are_known() -> None:
    assert names_in("{{A}} {{B_2}} {{}}") == {"A", "B_2"}


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_a_variable_is_a_value_in_a_filter_and_may_be_a_whole_filter() -> None:
    find = finder(ID="' OR 1=1 OR '", ASKED="/id = 3")
    assert expand_filter("/id = '{{ID}}'", find) == "/id = '\\' OR 1=1 OR \\''"
    assert expand_filter(" {{ASKED}} ", find) == " /id = 3 "


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
def test_a_variable_in_a_pattern_is_a_part_of_one_name() -> None:
    assert expand_pattern("in/{{A}}*.txt", finder(A="a*?[b]")) == "in/a[*][?][[]b]*.txt"
    for text in ("../x", "/etc", ".."):
        with pytest.raises(ConfigurationError, match="write the directory into the pattern"):
            expand_pattern("in/{{A}}", finder(A=text))


@pytest.mark.covers("Actions", "`{{VARIABLE}}`: no client changes options or conditions")
@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("echo {{A}}", 'echo "${ACTION_A}"'),
        ('echo "<{{A}}>"', 'echo "<${ACTION_A}>"'),
        ("echo '<{{A}}>'", """echo '<'"${ACTION_A}"'>'"""),
        ("echo \\'{{A}}\\'", """echo \\'"${ACTION_A}"\\'"""),
        ("# it's\necho {{A}} # {{A}}", '# it\'s\necho "${ACTION_A}" # {{A}}'),
        ("echo it's {{A}}", 'echo it\'s "${ACTION_A}"'),
    ],
)
def test_a_variable_in_a_command_is_a_parameter_of_the_shell(template: str, written: str) -> None:
    found = expand_command(template, finder(A="$(id); ' \" `id`"))
    assert found == (written, {"ACTION_A": "$(id); ' \" `id`"})


def test_variables_of_a_command_whose_names_differ_by_a_sign_are_two_parameters() -> None:
    found = expand_command("{{A.B}} {{A-B}} {{A.B}}", lookup({"A.B": "1", "A-B": "2"}, "x", 0))
    text = '"${ACTION_A_B}" "${ACTION_A_B_}" "${ACTION_A_B}"'
    assert found == (text, {"ACTION_A_B": "1", "ACTION_A_B_": "2"})
    assert expand_command("echo", finder()) == ("echo", {})
