"""docs/actions.md: its tables are those of the modules, and what it declares can be declared.
tests/end_to_end/test_action_examples.py runs its examples."""

from __future__ import annotations

import re

import pytest
from support.action_documents import examples, whole
from support.actions_page import PAGE, written
from support.typed_pages import blocks

from raylay.services.actions.modules import MODULES
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import load_amps
from raylay.services.configuration.amps.support import findings
from raylay.services.configuration.yaml_file import parse


def test_its_tables_are_those_of_the_modules() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "make action-modules"
    assert text.count("\n| `") > len(MODULES) - 4


def test_its_fabric_can_be_declared_in_yaml_and_in_python() -> None:
    (file,) = blocks("actions.md", "yaml")
    settings = parse(file)
    (action,) = settings.actions_of(settings.instances[0])
    names: dict[str, object] = {}
    script, function = blocks("actions.md", "python")
    exec(script, names)
    assert names["large"].name == action.name  # type: ignore[attr-defined]
    assert names["large"].on == action.on[0]  # type: ignore[attr-defined]
    exec(function, names)
    assert names["priced"]({"AMPS_DATA": "ab"}) == {"PRICE": "4"}  # type: ignore[operator]


@pytest.mark.covers("Actions", "the examples of the page")
@pytest.mark.parametrize("title", examples())
def test_its_examples_can_be_declared(title: str) -> None:
    document = load_amps("f.xml", text=whole(examples()[title]), environment={})
    assert not [each for each in findings(document) if each.refuses]
    (instance,) = fabric_of([document]).instances
    assert instance.actions or (instance.journal and instance.journal.actions)


def test_every_key_that_it_names_is_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"amps-action-(?:on|if|do)-([a-z-]+)", text))
    assert named <= {module for _, module in MODULES}
