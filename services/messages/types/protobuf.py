"""The type `protobuf`: one message of a compiled .proto file (extra `protobuf`; behaviour.md 6).

The type is made from the file that `protoc --include_imports --descriptor_set_out=FILE` writes, and
from the message's full name. Fields have their names from the .proto file; an enumeration's value
is its name; a map is a dict, whose names are texts. A field of version 3 without presence has its
default when it is not set. Field numbers that the file does not define stay in a message through a
delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import VALUES_MAX, MessageType, missing, shown
from raylay.services.messages.types.trees import FieldPath, Tree

MESSAGE_VALUES = 3
"""Number of values as which an embedded message counts, in addition to its fields."""
_WIRE_BYTES = {1: 8, 5: 4}
_PACKED_BYTES = {1: 8, 2: 4, 6: 8, 7: 4, 15: 4, 16: 8}
"""Bytes of each packed number, by the type of its field (double, float, fixed and sfixed)."""
_GROUP, _GROUP_END = 3, 4
"""Wire types of a group's tags."""
_VARINTS = frozenset((3, 4, 5, 8, 13, 14, 17, 18))
_LAST_OF_VARINT = bytes(range(0x80))
_LACKS = {
    Ability.VIEW: "give the view another message type",
    Ability.ENRICHMENT: "publish what is to be in them",
    Ability.AGGREGATION: "define a view of another message type over them",
    Ability.EVENTS: "take events as another message type",
}


def protobuf_type(name: str, descriptors: bytes, message: str) -> Protobuf:
    """Returns the type of a message that a file of descriptors defines.

    Args:
        name: name of the type in messages.
        descriptors: a serialized FileDescriptorSet with all imports.
        message: full name, such as `market.Quote`.

    Raises:
        ConfigurationError: the descriptors cannot be used, or have no such message.
        MessageTypeError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError:
        missing(name, "protobuf", "protobuf")
    pool = descriptor_pool.DescriptorPool()
    syntax = {}
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.AddSerializedFile(file.SerializeToString())
            syntax[file.name] = file.syntax or "proto2"
    except (DecodeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"message type {name}: these are no descriptors ({reason}): write them with protoc "
            "--include_imports --descriptor_set_out=FILE"
        ) from None
    try:
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        raise ConfigurationError(
            f"message type {name}: the descriptors have no message {message!r}: give its full "
            "name, package and all"
        ) from None
    kind = Protobuf2 if syntax[descriptor.file.name] == "proto2" else Protobuf
    return kind(name, message_factory.GetMessageClass(descriptor))


class Protobuf(MessageType):
    """Bodies that are one message of protobuf version 3.

    Args:
        name: name of the type in messages.
        message_class: class of the message, made by the library.
    """

    kind = "protobuf"
    lacks: ClassVar[Mapping[Ability, str]] = {
        **_LACKS,
        Ability.DELTA: "version 3 does not say which fields are set; publish the whole message",
    }

    def __init__(self, name: str, message_class: Any) -> None:
        super().__init__(name)
        self._class = message_class
        self._always: dict[str, tuple[Any, ...]] = {}
        self._weighed: dict[str, dict[int, tuple[int, Any]]] = {}
        """Fields by message and number, each with two values: for repeated numbers the bytes of one
        (0: a varint), otherwise -1; and the type of the message that the field holds."""

    def parse(self, body: bytes | memoryview) -> Tree:
        tree = self._tree(self._message(body))
        self.shallow(tree)
        return tree

    def count_values(self, body: bytes | memoryview) -> int:
        """Counts the values by their tags, until there are too many or the body ends. An embedded
        message counts for as many numbers as take the same time to read."""
        raw = bytes(body)
        found, at = 0, 0
        within = [(len(raw), self._weights(self._class.DESCRIPTOR))]
        while within and found <= VALUES_MAX:
            end, weights = within[-1]
            if at >= end:
                within.pop()
                continue
            tag, at = _varint(raw, at, end)
            wire = tag & 7
            found += 1
            if wire == _GROUP:
                # Its fields follow, up to its end's tag.
                found += MESSAGE_VALUES
                message = weights.get(tag >> 3, (-1, None))[1]
                within.append((end, {} if message is None else self._weights(message)))
                continue
            if wire == _GROUP_END:
                within.pop()
                continue
            if wire != 2:
                at = _varint(raw, at, end)[1] if not wire else at + _WIRE_BYTES.get(wire, 0)
                continue
            length, at = _varint(raw, at, end)
            of_each, message = weights.get(tag >> 3, (-1, None))
            if message is not None:
                found += MESSAGE_VALUES
                within.append((min(at + length, end), self._weights(message)))
                continue
            if of_each > 0:
                found += length // of_each
            elif not of_each:
                packed = raw[at : at + length]
                found += len(packed) - len(packed.translate(None, _LAST_OF_VARINT))
            at += length
        return found

    def _weights(self, descriptor: Any) -> dict[int, tuple[int, Any]]:
        found = self._weighed.get(descriptor.full_name)
        if found is None:
            extensions = descriptor.file.pool.FindAllExtensions(descriptor)
            found = self._weighed[descriptor.full_name] = {
                field.number: (
                    _PACKED_BYTES.get(field.type, 0 if field.type in _VARINTS else -1)
                    if _is_repeated(field)
                    else -1,
                    field.message_type,
                )
                for field in (*descriptor.fields, *extensions)
            }
        return found

    def _message(self, body: bytes | memoryview) -> Any:
        from google.protobuf.message import DecodeError

        self.bounded(body)
        try:
            return self._class.FromString(bytes(body))
        except (DecodeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:160]
            raise self.wrong(f"{reason or 'it cannot be decoded'}") from None

    def _tree(self, message: Any) -> Tree:
        set_fields = dict(message.ListFields())
        result = {}
        for field, value in set_fields.items():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            result[name] = self._value(field, value)
        for field in self._without_presence(message.DESCRIPTOR):
            if field.name not in result:
                result[field.name] = self._single(field, getattr(message, field.name))
        return result

    def _without_presence(self, descriptor: Any) -> tuple[Any, ...]:
        found = self._always.get(descriptor.full_name)
        if found is None:
            found = self._always[descriptor.full_name] = tuple(
                field
                for field in descriptor.fields
                if not field.has_presence and not _is_repeated(field)
            )
        return found

    def _value(self, field: Any, value: Any) -> Any:
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            return {_key(key): self._single(of, value[key]) for key in value}
        if _is_repeated(field):
            return [self._single(field, each) for each in value]
        return self._single(field, value)

    def _single(self, field: Any, value: Any) -> Any:
        if field.message_type is not None:
            return self._tree(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return int(value) if known is None else known.name
        return value

    def serialize(self, tree: Tree) -> bytes:
        """Returns the message that has these fields; a field with None is left out."""
        message = self._class()
        self._fill(message, tree)
        return self._written(message)

    def _written(self, message: Any) -> bytes:
        from google.protobuf.message import EncodeError

        try:
            return bytes(message.SerializeToString())
        except EncodeError as error:
            raise self.wrong(str(error).partition("\n")[0][:160]) from None

    def _fill(self, message: Any, tree: Tree) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        for name, value in tree.items():
            field = fields.get(name)
            if field is None:
                raise self.wrong(f"{message.DESCRIPTOR.full_name} has no field {shown(name)}")
            if value is None:
                continue
            try:
                self._set(message, field, value)
            except (TypeError, ValueError, AttributeError, KeyError):
                raise self.wrong(
                    f"{message.DESCRIPTOR.full_name}.{name} cannot be {shown(value)}"
                ) from None

    def _set(self, message: Any, field: Any, value: Any) -> None:
        held = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            kind = field.message_type.fields_by_name["key"].cpp_type
            for text, each in value.items():
                key = _parsed_key(kind, text, field)
                if of.message_type is not None:
                    self._fill(held[key], each)
                else:
                    held[key] = _number(of, each)
        elif _is_repeated(field):
            for each in value:
                if field.message_type is not None:
                    self._fill(held.add(), each)
                else:
                    held.append(_number(field, each))
        elif field.message_type is not None:
            held.SetInParent()
            self._fill(held, value)
        else:
            setattr(message, field.name, _number(field, value))


class Protobuf2(Protobuf):
    """Bodies that are one message of protobuf version 2, in which each field tells whether it is
    set. A delta may lack required fields."""

    lacks: ClassVar[Mapping[Ability, str]] = {
        **_LACKS,
        Ability.SELECT: "version 2 may require fields; take the whole message",
    }

    def parse(self, body: bytes | memoryview) -> Tree:
        return super().parse(body)

    def merge(self, stored: bytes | memoryview, delta: bytes | memoryview) -> bytes:
        """Returns the stored message with the fields of a delta merged into it; maps are merged by
        entries, and repeated fields are replaced as a whole."""
        message = self._message(stored)
        _merge(message, self._message(delta))
        return bytes(message.SerializePartialToString())

    def difference(
        self,
        before: bytes | memoryview,
        after: bytes | memoryview,
        keys: Sequence[FieldPath] = (),
        *,
        empties: bool = True,
    ) -> bytes:
        """Returns the fields that are set in `after` to another value; a removed field cannot be
        expressed."""
        found = _changes(self._message(before), self._message(after), keys)
        return bytes(found.SerializePartialToString())


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Returns the number that begins here, and the offset behind it."""
    value = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return value, at


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    of = field.message_type
    return field.is_repeated and of is not None and of.GetOptions().map_entry


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _parsed_key(kind: int, text: str, field: Any) -> Any:
    if kind == field.CPPTYPE_STRING:
        return text
    if kind == field.CPPTYPE_BOOL:
        return {"true": True, "false": False}[text]
    return int(text)


def _number(field: Any, value: Any) -> Any:
    """Returns the number of an enumeration's value that is given by its name; other values
    unchanged."""
    if field.enum_type is not None and isinstance(value, str):
        return field.enum_type.values_by_name[value].number
    return value


def _merge(stored: Any, delta: Any) -> None:
    rest = type(delta)()
    rest.CopyFrom(delta)
    for field, value in delta.ListFields():
        if field.is_extension:
            continue
        rest.ClearField(field.name)
        if _is_map(field):
            _merge_map(field, getattr(stored, field.name), value)
        elif _is_repeated(field):
            stored.ClearField(field.name)
            getattr(stored, field.name).MergeFrom(value)
        elif field.message_type is not None:
            inner = getattr(stored, field.name)
            inner.SetInParent()
            _merge(inner, value)
        else:
            setattr(stored, field.name, value)
    # The remaining numbers have no field here.
    stored.MergeFrom(rest)


def _merge_map(field: Any, stored: Any, delta: Any) -> None:
    is_of_messages = field.message_type.fields_by_name["value"].message_type is not None
    for key in delta:
        if is_of_messages:
            _merge(stored[key], delta[key])
        else:
            stored[key] = delta[key]


def _change_map(field: Any, before: Any, after: Any, result: Any) -> None:
    """Adds the changed entries of a map to `result`; removed entries cannot be expressed."""
    is_of_messages = field.message_type.fields_by_name["value"].message_type is not None
    for key in after:
        is_new = key not in before
        if not is_new and before[key] == after[key]:
            continue
        if is_of_messages:
            result[key].CopyFrom(after[key] if is_new else _changes(before[key], after[key], ()))
        else:
            result[key] = after[key]


def _changes(before: Any, after: Any, keys: Sequence[FieldPath]) -> Any:
    result = type(after)()
    result.CopyFrom(after)
    for field, value in after.ListFields():
        if field.is_extension:
            continue
        name = field.name
        wanted = [path[1:] for path in keys if path[0] == name]
        if _is_repeated(field):
            same = getattr(before, name) == value
        else:
            same = before.HasField(name) and getattr(before, name) == value
        if same and not wanted:
            result.ClearField(name)
        elif _is_map(field) and () not in wanted:
            result.ClearField(name)
            _change_map(field, getattr(before, name), value, getattr(result, name))
        elif (
            field.message_type is not None
            and not _is_repeated(field)
            and before.HasField(name)
            and () not in wanted
        ):
            inner = _changes(getattr(before, name), value, wanted)
            getattr(result, name).CopyFrom(inner)
    return result
