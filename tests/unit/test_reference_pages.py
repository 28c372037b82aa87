"""The references of the Python API and of the shell are those of the code."""

from __future__ import annotations

import re

import pytest
from support.reference_pages import (
    PYTHON_PAGE,
    SCHEMA_FILE,
    SETTINGS_PAGE,
    SHELL_PAGE,
    commands,
    python_page,
    schema_text,
    settings_page,
    shell_page,
)

import raylay

pytestmark = pytest.mark.covers("Utilities", "the references of Python and of the shell")


def test_the_pages_are_written_from_the_code() -> None:
    for page, wanted in (
        (PYTHON_PAGE, python_page()),
        (SHELL_PAGE, shell_page()),
        (SETTINGS_PAGE, settings_page()),
        (SCHEMA_FILE, schema_text()),
    ):
        assert page.read_text(encoding="utf-8") == wanted, f"{page}: run make reference-pages"


def test_every_public_name_and_its_methods_are_there() -> None:
    page = python_page()
    assert [name for name in raylay.__all__ if f"\n## {name}\n" not in page] == []
    for method in ("Client.publish", "Client.subscribe", "SyncClient.queue", "Fabric.start"):
        assert f"\n### {method}\n" in page
    assert " object at " not in page, "the address of an object differs in each process"


@pytest.mark.parametrize("owner", ["MemoryPublishStore", "LmdbBookmarkStore"])
def test_a_name_without_a_text_is_refused(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled() -> None: ...

    monkeypatch.setattr(getattr(raylay, owner), "discard", spoiled, raising=False)
    with pytest.raises(ValueError, match=rf"^{owner}\.discard has no docstring"):
        python_page()
    monkeypatch.setattr(getattr(raylay, owner), "discard", property(lambda _: 1), raising=False)
    with pytest.raises(ValueError, match=rf"^{owner}\.discard has no docstring"):
        python_page()


def test_no_entry_is_empty() -> None:
    """A heading is followed by a text, not by the next heading, though a signature is there."""
    entries = re.split(r"^#{2,3} (.+)$", python_page(), flags=re.MULTILINE)[1:]
    empty = [
        name
        for name, body in zip(entries[::2], entries[1::2], strict=True)
        if not re.sub(r"```python\n.*?```", "", body, flags=re.DOTALL).strip()
    ]
    assert empty == []


def test_every_command_and_option_is_there() -> None:
    page = shell_page()
    for name, command in commands():
        assert f"\n## raylay {name}\n" in page
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help":
                assert any(f"`{each}" in page or f" {each}" in page for each in option.opts)


def test_every_option_and_argument_says_what_it_is() -> None:
    silent = [
        f"raylay {name} {each.name}"
        for name, command in commands()
        for each in command.params
        if not getattr(each, "help", None)
    ]
    assert silent == []
