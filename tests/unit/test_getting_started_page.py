"""docs/getting-started.md: what it costs a newcomer to read and type it, and how pages with a
terminal are read and compared (tests/support/transcripts.py)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from support import transcripts

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
FIRST_MESSAGE = "python first.py"
THREE_MINUTES_S = 180


def to_the_first_message() -> list[transcripts.Step]:
    return transcripts.until(transcripts.read(PAGE.read_text(encoding="utf-8")), FIRST_MESSAGE)


def test_setup_to_the_first_message_takes_less_than_three_minutes() -> None:
    steps = to_the_first_message()
    assert steps[0].command == "make setup"
    assert transcripts.seconds(steps) < THREE_MINUTES_S


def test_the_page_says_what_was_counted() -> None:
    steps = to_the_first_message()
    said = re.search(r"(\d+) words to read and (\d+) keystrokes", PAGE.read_text(encoding="utf-8"))
    assert said is not None
    assert int(said[1]) == pytest.approx(transcripts.words(steps), abs=10)
    assert int(said[2]) == pytest.approx(transcripts.keystrokes(steps), abs=20)


def test_each_file_is_written_before_it_is_used_and_can_be_read() -> None:
    written: set[str] = set()
    for step in transcripts.read(PAGE.read_text(encoding="utf-8")).steps:
        if step.file:
            written.add(step.file)
            yaml.safe_load(step.text) if step.file.endswith(".yaml") else ast.parse(step.text)
        assert set(re.findall(r"(?<![\w/])\w+\.(?:py|yaml)\b", step.command)) <= written
    assert written == {"orders.yaml", "first.py"}


PART = """\
# Title

Two words.

```console
$ first --option
one
$ second
```

```yaml
# a.yaml
x: {
  y: 1}
```

```python
not_a_file()
```

The rest.
"""


def test_a_page_is_read_as_steps() -> None:
    page = transcripts.read(PART)
    assert page.steps == [
        transcripts.Step("Title\nTwo words.\n", command="first --option", answer="one\n"),
        transcripts.Step(command="second"),
        transcripts.Step(file="a.yaml", text="# a.yaml\nx: {\n  y: 1}\n"),
    ]
    assert page.rest == "The rest.\n"
    assert transcripts.words(page.steps) == 4
    assert transcripts.keystrokes(page.steps) == len(
        "first --option\nsecond\n# a.yaml\nx: {\n y: 1}\n\n"
    )
    assert transcripts.until(page, "second") == page.steps[:2]


@pytest.mark.parametrize(
    ("answer", "came", "same"),
    [
        ("done\n", "done\n", True),
        ("done\n", "\n done\n", False),
        ("done\n", "done  \n\n", True),
        ("done\n", "done\nand more\n", False),
        ("", "unexpected\n", False),
        ("…\ndone\n", "done\n", True),
        ("…\ndone\n", "one\ntwo\ndone\n", True),
        ("…\n", "", True),
        ("in …/data\n", "in /tmp/x/data\n", True),
        ("in …/data\n", "in /tmp/x\n/data\n", False),
        ("0.014 s: 123456|7|\n", "12.5 s: 99|7|\n", True),
        ("0.014 s: 123456|7|\n", "12.5 s: 99|8|\n", False),
        ("1 persisted\n", "2 persisted\n", False),
        (" a    b\n ────\n", " a b\n ──\n", True),
        ("a.b (c)\n", "a-b (c)\n", False),
    ],
)
def test_an_answer_is_compared_with_what_came(answer: str, came: str, same: bool) -> None:
    assert transcripts.matches(answer, came) is same
