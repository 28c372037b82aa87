"""The types `fix` and `nvfix`: fields of a tag, `=` and a value, each ended by a separator.

Tags of `fix` are numbers, those of `nvfix` any text. Values are texts, which expressions interpret.
Bytes that are no UTF-8 are kept (Python's surrogateescape). A tag that occurs several times has the
list of its values, in their order: the documents do not say (docs/deviations.md). Tags such as
BodyLength (9) and CheckSum (10) are ordinary fields: nothing computes them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.base import SLOW_BODY_BYTES_MAX, MessageType, ParsedBody, shown
from raylay.services.messages.types.trees import Tree, same

SOH = 1
"""The default field separator."""


class Nvfix(MessageType):
    """Bodies such as `name=value<SOH>other=value<SOH>`.

    Args:
        name: name of the type in messages.
        field_separator: code of the byte that ends a field.

    Raises:
        ConfigurationError: no byte can end a field that has this code.
    """

    kind = "nvfix"
    parsed_bytes_max = SLOW_BODY_BYTES_MAX
    value_bytes_min = 3

    def __init__(self, name: str = "", *, field_separator: int = SOH) -> None:
        super().__init__(name)
        if not 0 < field_separator < 128 or field_separator == ord("="):
            raise ConfigurationError(
                f"message type {self.name}: expected an ASCII code from 1 to 127 (not 61, the "
                f"equals sign) that ends a field, got {field_separator}"
            )
        self.field_separator = field_separator
        self._separator = chr(field_separator)

    def parse(self, body: bytes | memoryview) -> Tree:
        self.bounded(body)
        fields = str(body, "utf-8", "surrogateescape").split(self._separator)
        if not fields[-1]:
            fields.pop()
        try:
            tree: Tree = dict([field.split("=", 1) for field in fields])
        except ValueError:
            raise self._wrong(fields, lambda field: "=" not in field) from None
        if "" in tree:
            raise self._wrong(fields, lambda field: field.startswith("="))
        self._check_tags(tree, fields)
        return tree if len(tree) == len(fields) else _repeated(fields)

    def count_values(self, body: bytes | memoryview) -> int:
        """Returns the number of bytes that end a field."""
        return bytes(body).count(self.field_separator)

    def _check_tags(self, tree: Tree, fields: list[str]) -> None:
        """Refuses tags that the type does not allow."""

    def _wrong(self, fields: list[str], is_wrong: Callable[[str], bool]) -> MessageTypeError:
        at = next(number for number, field in enumerate(fields) if is_wrong(field))
        field = fields[at]
        offset = len("".join(fields[:at]).encode("utf-8", "surrogateescape")) + at
        return self.wrong(f"expected {self._expected}, got {shown(field)}", offset)

    _expected = "a field tag=value"

    def serialize(self, tree: Tree) -> bytes:
        """Returns the fields in the order of the tree, each ended by the separator."""
        parts = []
        for tag, value in tree.items():
            self._check_tag(tag)
            parts += [(tag, self._text(tag, each)) for each in _values(value)]
        return self._joined(parts)

    def _spliced(self, tree: Tree, known: Sequence[ParsedBody]) -> bytes:
        """Writes a merged message in the order of the first body, so that the fields of a repeating
        group stay together. A new value of a tag replaces the former one in place."""
        base = known[0]
        left = {tag: _values(value) for tag, value in tree.items()}
        occurrences = {tag: len(_values(value)) for tag, value in base.tree.items()}
        parts = []
        for tag, text in self._fields_of(base.body):
            if tag not in left:
                continue
            values = left[tag]
            occurrences[tag] -= 1
            if same(base.tree[tag], tree[tag]):
                parts.append((tag, text))
                continue
            count = len(values) if not occurrences[tag] else min(1, len(values))
            parts += [(tag, self._text(tag, each)) for each in values[:count]]
            del values[:count]
        for tag, values in left.items():
            if tag not in base.tree:
                self._check_tag(tag)
                parts += [(tag, self._text(tag, each)) for each in values]
        return self._joined(parts)

    def _fields_of(self, body: bytes | memoryview) -> Iterator[tuple[str, str]]:
        for field in str(body, "utf-8", "surrogateescape").split(self._separator):
            if field:
                tag, _, text = field.partition("=")
                yield tag, text

    def _joined(self, parts: Iterable[tuple[str, str]]) -> bytes:
        try:
            return "".join([f"{tag}={text}{self._separator}" for tag, text in parts]).encode(
                "utf-8", "surrogateescape"
            )
        except UnicodeEncodeError as error:
            raise self.wrong(f"{shown(error.object[error.start])} is no character") from None

    def _check_tag(self, tag: str) -> None:
        if not tag or "=" in tag or self._separator in tag:
            raise self.wrong(f"{shown(tag)} cannot be a tag")

    def _text(self, tag: str, value: object) -> str:
        if type(value) is str:
            text = value
        elif value is None:
            text = ""
        elif isinstance(value, bool):
            text = "1" if value else "0"
        elif isinstance(value, int | float):
            text = self.number(value)
        elif isinstance(value, bytes):
            text = value.decode("utf-8", "surrogateescape")
        else:
            raise self.wrong(f"the value of {shown(tag)} has fields of its own")
        if self._separator in text:
            raise self.wrong(f"the value of {shown(tag)} has the byte that ends a field")
        return text


class Fix(Nvfix):
    """Bodies such as `8=FIX.4.2<SOH>55=IBM<SOH>`: tags are numbers."""

    kind = "fix"
    _expected = "a field tag=value, whose tag is a number"

    def _check_tags(self, tree: Tree, fields: list[str]) -> None:
        tags = "".join(tree)
        if tags and not (tags.isascii() and tags.isdigit()):
            raise self._wrong(fields, lambda field: not _is_number(field.partition("=")[0]))

    def _check_tag(self, tag: str) -> None:
        if not _is_number(tag):
            raise self.wrong(f"{shown(tag)} cannot be a tag: tags of FIX are numbers")


def _values(value: Any) -> list[Any]:
    """Returns all values of a tag, as a new list."""
    return list(value) if type(value) is list else [value]


def _is_number(tag: str) -> bool:
    return tag.isascii() and tag.isdigit()


def _repeated(fields: list[str]) -> Tree:
    tree: Tree = {}
    for field in fields:
        tag, _, value = field.partition("=")
        if tag not in tree:
            tree[tag] = value
        elif type(tree[tag]) is list:
            tree[tag].append(value)
        else:
            tree[tag] = [tree[tag], value]
    return tree
