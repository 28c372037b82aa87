"""Pages that show a terminal: what a reader types there, the files that a reader writes, and the
answers, which are compared with what comes.

A block ```` ```console ```` has commands behind `$ ` and under each its answer; a block whose first
line is `# NAME` is the file NAME. In an answer `…` stands for anything on its line, and alone on a
line for any lines; a number with a decimal point or of five digits and more (times, ports,
bookmarks) for any other one; a stretch of spaces or of `─` for any other one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from markdown_it import MarkdownIt

READING_WORDS_PER_MINUTE = 200
"""Adults read English prose silently at 238 words a minute on average (Brysbaert, 2019)."""
TYPING_KEYS_PER_MINUTE = 200
"""40 words of five keystrokes: what people reach who do not type for a living."""
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
ANY = {
    "lines": ("…\n", r"(?:.*\n)*?"),
    "words": ("…", r".*?"),
    "decimal": (r"\d+\.\d+", r"\d+\.\d+"),
    "long": (r"\d{5,}", r"\d+"),
    "rule": (r"─+", r"─+"),
    "space": (r"[^\S\n]+", r"[^\S\n]+"),
}
"""What an answer shows, and what may stand there."""
SHOWN = re.compile(
    "|".join(
        rf"(?P<{name}>{'(?m:^)' if name == 'lines' else ''}{shown})"
        for name, (shown, _) in ANY.items()
    )
)


@dataclass
class Step:
    """What the reader does at one place of a page.

    Attributes:
        prose: what is read before it.
        file: the name of the file that is written, with `text`; empty: `command` is typed.
        answer: what the terminal answers to the command.
    """

    prose: str = ""
    file: str = ""
    text: str = ""
    command: str = ""
    answer: str = ""


@dataclass
class Page:
    """The steps of a page or of a part of it, and the prose behind the last one."""

    steps: list[Step] = field(default_factory=list)
    rest: str = ""


def read(text: str) -> Page:
    """The steps of a page, in their order."""
    page = Page()
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "inline":
            page.rest += token.content + "\n"
        elif token.type == "fence":
            for step in _steps(token.info.strip(), token.content):
                step.prose, page.rest = page.rest, ""
                page.steps.append(step)
    return page


def _steps(language: str, text: str) -> Iterator[Step]:
    name = FILE_NAME.match(text)
    if language == "console":
        lines = iter(text.splitlines(keepends=True))
        assert text.startswith("$ "), f"a console block begins with a command: {text}"
        for part in re.split(r"^\$ ", "".join(lines), flags=re.MULTILINE)[1:]:
            command, _, answer = part.partition("\n")
            yield Step(command=command, answer=answer)
    elif name:
        yield Step(file=name[1], text=text)


def matches(answer: str, came: str) -> bool:
    """Whether what the terminal answered is what the page shows. Trailing spaces and empty lines
    count for nothing."""
    expression = ""
    place = 0
    shown = _tidy(answer)
    for found in SHOWN.finditer(shown):
        assert found.lastgroup is not None
        expression += re.escape(shown[place : found.start()]) + ANY[found.lastgroup][1]
        place = found.end()
    expression += re.escape(shown[place:])
    return re.fullmatch(expression, _tidy(came)) is not None


def _tidy(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def until(page: Page, command: str) -> list[Step]:
    """The steps up to the first one with this command, and with it."""
    before = list(takewhile(lambda step: step.command != command, page.steps))
    assert len(before) < len(page.steps), f"the page has no command {command!r}"
    return page.steps[: len(before) + 1]


def words(steps: list[Step]) -> int:
    """That are read: the prose and the answers."""
    return sum(len(re.findall(r"\w[\w'/.-]*", step.prose + step.answer)) for step in steps)


def keystrokes(steps: list[Step]) -> int:
    """For the commands and the files, nothing copied; the indentation of a line is one."""
    typed = "\n".join(step.command + step.text for step in steps) + "\n"
    return len(re.sub(r"^ +", " ", typed, flags=re.MULTILINE))


def seconds(steps: list[Step]) -> float:
    """Of reading and typing, one after the other."""
    minutes = words(steps) / READING_WORDS_PER_MINUTE + keystrokes(steps) / TYPING_KEYS_PER_MINUTE
    return 60 * minutes
