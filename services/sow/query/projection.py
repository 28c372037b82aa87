"""Select lists: the fields of a message that are sent (behaviour.md 4.4): `[-/,+/a,-/a/b]`.

Each directive says whether a field, with everything below it, is sent. For a field under two
directives, the one for the deeper field counts, and of two for the same field the last one; a field
without a directive is sent. Filters see the whole message.
"""

from __future__ import annotations

from typing import Any

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import DEPTH_MAX, MessageType
from raylay.services.messages.types.trees import Tree, field_path

DIRECTIVES_MAX = 1_000
_SHOWN_CHARACTERS_MAX = 200


class _Node:
    """The directive for a field, and the directives for fields within it."""

    __slots__ = ("fields", "is_sent")

    def __init__(self) -> None:
        self.is_sent: bool | None = None
        self.fields: dict[str, _Node] = {}


class Projection:
    """A select list, for messages of one type. Immutable.

    Args:
        text: the list, with or without brackets.
        message_type: type of the messages.

    Raises:
        RemoteProtocolError: with reason `bad_select`: the text is no select list; with
            `not_supported`: fields cannot be cut out of messages of that type.
    """

    __slots__ = ("_root", "_type", "text")

    def __init__(self, text: str, message_type: MessageType) -> None:
        self.text = text
        self._type = message_type
        try:
            message_type.require(Ability.FIELDS)
            message_type.require(Ability.SELECT)
        except MessageTypeError as error:
            raise RemoteProtocolError(f"select: {error}", "not_supported") from None
        self._root = _root(text)

    def of_tree(self, tree: Tree) -> Tree:
        """Returns the fields that are sent. The argument is not changed."""
        return _cut(tree, self._root, self._root.is_sent is not False)

    def of_body(self, body: bytes) -> bytes:
        """Returns the message with only these fields; empty where its type cannot express them."""
        try:
            known = self._type.known(body)
            return self._type.rewritten(self.of_tree(known.tree), known)
        except MessageTypeError:
            return b""


def check_select(text: str) -> None:
    """Checks that a select list is valid for some type.

    Raises:
        RemoteProtocolError: with reason `bad_select`.
    """
    _root(text)


def _root(text: str) -> _Node:
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    directives = [each.strip() for each in inner.split(",")]
    if len(directives) > DIRECTIVES_MAX:
        raise _wrong(text, f"it has more than {DIRECTIVES_MAX} directives")
    root = _Node()
    for directive in directives:
        if directive[:1] not in ("+", "-") or not directive[1:].startswith("/"):
            raise _wrong(
                text,
                f"expected + or - and a field, such as +/a, or -/ for all, got {directive[:60]!r}",
            )
        node = root
        if directive[1:] != "/":
            try:
                path = field_path(directive[1:])
            except MessageTypeError as error:
                raise _wrong(text, str(error)) from None
            if len(path) > DEPTH_MAX or any(name.endswith("]") for name in path):
                raise _wrong(
                    text, f"{directive[:60]!r} names no whole field: leave out the subscript"
                )
            for name in path:
                node = node.fields.setdefault(name, _Node())
        node.is_sent = directive[0] == "+"
    return root


def _wrong(text: str, why: str) -> RemoteProtocolError:
    shown = text[:_SHOWN_CHARACTERS_MAX]
    return RemoteProtocolError(f"{shown!r} is no select list: {why}", "bad_select")


def _cut(tree: Tree, node: _Node, is_sent: bool) -> Tree:
    if not is_sent:
        # Most lists name a few fields: the other fields need not be visited.
        return _named(tree, node)
    found: Tree = {}
    fields = node.fields
    for name, value in tree.items():
        said = fields.get(name)
        if said is None:
            found[name] = value
        else:
            _put(found, name, value, said, is_sent if said.is_sent is None else said.is_sent)
    return found


def _named(tree: Tree, node: _Node) -> Tree:
    found: Tree = {}
    fields = node.fields
    # The fields have the order of the message.
    for name in fields if len(fields) == 1 else [each for each in tree if each in fields]:
        if name in tree:
            said = fields[name]
            _put(found, name, tree[name], said, said.is_sent is True)
    return found


def _put(found: Tree, name: str, value: Any, said: _Node, is_sent: bool) -> None:
    if not said.fields or type(value) not in (dict, list):
        if is_sent:
            found[name] = value
        return
    cut = _cut_value(value, said, is_sent)
    if cut or is_sent:
        found[name] = cut


def _cut_value(value: Any, node: _Node, is_sent: bool) -> Any:
    """Returns a value reduced to its selected fields; for a list, each of its objects."""
    if type(value) is dict:
        return _cut(value, node, is_sent)
    if type(value) is list:
        cut = [_cut_value(each, node, is_sent) for each in value]
        return cut if is_sent else [each for each in cut if each not in (None, {}, [])]
    return value if is_sent else None
