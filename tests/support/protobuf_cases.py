"""A .proto file as protoc compiles it, and a message of it written by hand."""

from __future__ import annotations

from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto


def descriptors(syntax: str) -> bytes:
    """What protoc writes of `message Quote` in package market.

    id = 1 (int64), sym = 2 (string), px = 3 (double), side = 4 (Side), legs = 5 (repeated Quote),
    desk = 6 (Quote), sizes = 7 (map<string, int32>), blob = 8 (bytes), open = 9 (bool),
    by_day = 10 (map<int32, Quote>).
    """
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="market.proto", package="market", syntax=syntax)
    side = file.enum_type.add(name="Side")
    side.value.add(name="BUY", number=0)
    side.value.add(name="SELL", number=1)
    quote = file.message_type.add(name="Quote")
    one, many = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    for number, (name, kind, label, of) in enumerate(
        [
            ("id", Field.TYPE_INT64, one, ""),
            ("sym", Field.TYPE_STRING, one, ""),
            ("px", Field.TYPE_DOUBLE, one, ""),
            ("side", Field.TYPE_ENUM, one, ".market.Side"),
            ("legs", Field.TYPE_MESSAGE, many, ".market.Quote"),
            ("desk", Field.TYPE_MESSAGE, one, ".market.Quote"),
            ("sizes", Field.TYPE_MESSAGE, many, ".market.Quote.SizesEntry"),
            ("blob", Field.TYPE_BYTES, one, ""),
            ("open", Field.TYPE_BOOL, one, ""),
            ("by_day", Field.TYPE_MESSAGE, many, ".market.Quote.ByDayEntry"),
        ],
        1,
    ):
        field = quote.field.add(name=name, number=number, type=kind, label=label)
        if of:
            field.type_name = of
    entry = quote.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=one)
    entry = quote.nested_type.add(name="ByDayEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_INT32, label=one)
    value = entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, label=one)
    value.type_name = ".market.Quote"
    return files.SerializeToString()


BODY = (
    b"\x08\x07\x12\x03IBM\x19\0\0\0\0\0\0\xf8\x3f\x20\x01\x2a\x02\x08\x01\x2a\x02\x08\x02"
    b"\x32\x04\x12\x02fx\x3a\x05\x0a\x01a\x10\x05\x42\x01\xff\x48\x01"
)
