"""Bodies that are read by a schema, through the source's readers without Spark: each by itself,
whatever the others are, and never as a value that it does not have."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import bson
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils
from support.pipeline_cases import START_US, write_log

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Command, Flag, RecordBuilder, Run
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.dead_letters import SCHEMA
from raylay.services.pipeline.tables.source import BatchReader, RaylaySource, ReadOptions
from raylay.services.pipeline.tables.values import BodyParser

pytestmark = pytest.mark.covers("Data pipeline", "bodies by a schema")


def bodies_run(
    bodies: Sequence[bytes], message_type: str = "json", first: int = 1, **options: Any
) -> Run:
    """One run with these bodies."""
    builder = RecordBuilder(7, "orders", message_type)
    parts = [
        builder.build(number, body, START_US, **options)
        for number, body in enumerate(bodies, first)
    ]
    return Run(
        7,
        first,
        first + len(bodies) - 1,
        len(bodies),
        b"".join(parts),
        b"orders",
        message_type.encode(),
        path=(0xA1,),
        group="Chicago",
        flags=Flag.CONTIGUOUS,
        first_txid=first,
        receive_time_us=START_US,
    )


def read(directory: Path, schema: dict[str, Any], **options: str) -> list[dict[str, Any]]:
    """The rows of a batch read: `txid` and `value`."""
    kind = StructType(
        [
            StructField("txid", LongType()),
            StructField("value", StructType([StructField(*each) for each in schema.items()])),
        ]
    )
    reader = BatchReader(ReadOptions.of({"path": str(directory), **options}), kind)
    batches = [each for part in reader.partitions() for each in reader.read(part)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def values(
    tmp_path: Path,
    bodies: Sequence[bytes],
    schema: dict[str, Any],
    message_type: str = "json",
    **options: str,
) -> list[Any]:
    log = write_log(tmp_path / "one", [bodies_run(bodies, message_type)])
    return [row["value"] for row in read(log.directory, schema, **options)]


def parsed(
    bodies: Sequence[bytes], schema: dict[str, Any], message_type: str = "json"
) -> tuple[list[Any], dict[int, str]]:
    """The values of these bodies, and the reasons of those refused, without a log."""
    declared = StructType([StructField(*each) for each in schema.items()])
    kind = pa.struct(list(to_arrow_schema(declared, timezone="UTC")))
    columns = (pa.array([text] * len(bodies)) for text in (message_type, "publish"))
    found = BodyParser(kind, MessageTypes()).read(pa.array(bodies, pa.binary()), *columns)
    found.values.validate(full=True)
    return found.values.to_pylist(), dict(found.refused)


# -- each body by itself -------------------------------------------------------------------------
def test_a_body_with_two_objects_gives_no_row_another_value(tmp_path: Path) -> None:
    bodies = [b'{"a":1}{"a":2}', b" ", b'{"a":3}']
    found = values(tmp_path, bodies, {"a": IntegerType()}, mode="permissive")
    assert found == [None, None, {"a": 3}]
    with pytest.raises(ConfigurationError, match=r"message 7\|1\|.*unexpected content.*id 1 of /"):
        read(tmp_path / "one", {"a": IntegerType()})


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b" null ",
        b"[]",
        b"1",
        b'"x"',
        b"\n",
        b'{"a":1}\n{"a":2}',
        b'{"a":1}null{"a":1}',
        b"{",
    ],
)
def test_a_body_that_is_no_object_is_refused_alone(tmp_path: Path, body: bytes) -> None:
    found = values(
        tmp_path, [b'{"a":1}', body, b'{"a":3}'], {"a": IntegerType()}, mode="permissive"
    )
    assert found == [{"a": 1}, None, {"a": 3}]
    with pytest.raises(ConfigurationError, match=r"message 7\|2\| does not match"):
        read(tmp_path / "one", {"a": IntegerType()})
    dropped = read(tmp_path / "one", {"a": IntegerType()}, mode="dropmalformed")
    assert [row["txid"] for row in dropped] == [1, 3]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
BODIES = st.lists(
    st.binary(max_size=12)
    | JSON_VALUES.map(json.dumps).map(str.encode)
    | st.fixed_dictionaries({}, optional={"a": JSON_VALUES, "b": JSON_VALUES, "c\n": JSON_VALUES})
    .map(lambda tree: json.dumps(tree, ensure_ascii=len(tree) % 2 == 0))
    .map(str.encode),
    min_size=1,
    max_size=12,
)
OF_HYPOTHESIS = {"a": LongType(), "b": StringType(), "c\n": DoubleType()}


def _long(value: Any) -> Any:
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None


def _text(value: Any, spelled: str) -> Any:
    return value if isinstance(value, str) or value is None else spelled


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(BODIES)
def test_any_bodies_give_what_a_plain_parser_gives(bodies: list[bytes]) -> None:
    found, refused = parsed(bodies, OF_HYPOTHESIS)
    for row, (body, value) in enumerate(zip(bodies, found, strict=True)):
        try:
            tree = json.loads(body.decode(), parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError, RecursionError):
            tree = None
        if type(tree) is not dict:
            assert value is None and (row in refused) == bool(body)
            continue
        assert value["a"] == _long(tree.get("a"))
        if not isinstance(tree.get("b"), str | None):
            assert json.loads(value["b"]) == tree["b"]
        else:
            assert value["b"] == tree.get("b")
        number = tree.get("c\n")
        if type(number) in (int, float):
            assert value["c\n"] == float(number)
        else:
            assert value["c\n"] is None


# -- types ---------------------------------------------------------------------------------------
UTC = dt.UTC
HALF_PAST = dt.datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)
CASES: list[tuple[Any, bytes, Any]] = [
    (StringType(), b'"x"', "x"),
    (StringType(), b"1", "1"),
    (StringType(), b"1.10", "1.10"),
    (StringType(), b"1e400", "1e400"),
    (StringType(), b"123456789012345678901234567890", "123456789012345678901234567890"),
    (StringType(), b"true", "true"),
    (StringType(), b'[1, 2.50, {"x": null}]', '[1,2.50,{"x":null}]'),
    (ShortType(), b"-32768", -32768),
    (LongType(), b"9223372036854775807", 9223372036854775807),
    (DoubleType(), b"1", 1.0),
    (FloatType(), b"0.5", 0.5),
    (BooleanType(), b"false", False),
    (DecimalType(38, 2), b"12345678901234567890.25", Decimal("12345678901234567890.25")),
    (DecimalType(10, 2), b"1e3", Decimal("1000.00")),
    (DecimalType(10, 2), b'"1.50"', Decimal("1.50")),
    (DecimalType(2, 2), b"0", Decimal("0.00")),
    (DecimalType(10, 2), b'" 1_0.5 "', Decimal("10.50")),
    (DateType(), b'"2026-01-02"', dt.date(2026, 1, 2)),
    (TimestampType(), b'"2026-01-02T05:04:05.5+02:00"', HALF_PAST),
    (TimestampType(), b'"2026-01-02 03:04"', dt.datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
    (TimestampType(), b'"2026-01-02t03:04:05.4999996z"', HALF_PAST),
    (TimestampNTZType(), b'"20260102-03:04:05.4999996"', HALF_PAST.replace(tzinfo=None)),
    (TimestampType(), b"1.5", dt.datetime(1970, 1, 1, 0, 0, 1, 500000, UTC)),
    (TimestampType(), b"-1", dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    (TimestampNTZType(), b'"2026-01-02T03:04:05"', dt.datetime(2026, 1, 2, 3, 4, 5)),
    (BinaryType(), b'"AAE="', b"\0\1"),
    (ArrayType(IntegerType()), b"[1, null]", [1, None]),
    (ArrayType(StringType()), b'[1, "x"]', ["1", "x"]),
    (MapType(StringType(), IntegerType()), b'{"x": 1}', [("x", 1)]),
    (MapType(LongType(), StringType()), b'{"7": 1.0}', [(7, "1.0")]),
    (StructType([StructField("x", ByteType())]), b'{"x": 1, "y": 1}', {"x": 1}),
    (ArrayType(MapType(StringType(), BinaryType())), b'[{"x": "AA=="}]', [[("x", b"\0")]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), CASES, ids=[f"{c[0]}-{c[1]!r}" for c in CASES])
def test_a_value_of_each_type(kind: Any, text: bytes, value: Any) -> None:
    """Also beside values that have to be converted one by one, and where its name is escaped."""
    bodies = [b'{"a": %s}' % text, b'{"\\u0061": %s}' % text, b'{"a": null}', b"{}", b""]
    found, refused = parsed(bodies, {"a": kind})
    assert not refused and found == [{"a": value}, {"a": value}, {"a": None}, {"a": None}, None]


MISFITS: list[tuple[Any, bytes]] = [
    (IntegerType(), b"1.0"),
    (IntegerType(), b"2147483648"),
    (IntegerType(), b'"1"'),
    (IntegerType(), b"true"),
    (DoubleType(), b"1e400"),
    (DoubleType(), b"true"),
    (FloatType(), b"1e39"),
    (BooleanType(), b"1"),
    (DecimalType(4, 2), b"1.255"),
    (DecimalType(4, 2), b"100"),
    (DecimalType(4, 2), b'"NaN"'),
    (DecimalType(4, 2), b"1e999999999"),
    (DateType(), b'"02.01.2026"'),
    (DateType(), b"20260102"),
    (TimestampType(), b'"now"'),
    (TimestampType(), b"1e300"),
    (TimestampType(), b"true"),
    (TimestampType(), b'"0001-01-01T00:00:00+00:01"'),
    (BinaryType(), b"9" * 4500),
    (VariantType(), b"9" * 4500),
    (TimestampNTZType(), b'"2026-01-02T03:04:05Z"'),
    (BinaryType(), b'"AAE"'),
    (BinaryType(), b"1"),
    (ArrayType(IntegerType()), b"1"),
    (MapType(StringType(), IntegerType()), b"[]"),
    (StructType([StructField("x", DateType())]), b"1"),
]


@pytest.mark.parametrize(("kind", "text"), MISFITS, ids=[f"{c[0]}-{c[1][:40]!r}" for c in MISFITS])
def test_a_value_that_its_type_cannot_hold_is_refused(kind: Any, text: bytes) -> None:
    schema = {"a": kind, "b": IntegerType()}
    bodies = [b'{"a": null, "b": 1}', b'{"b": 2, "a": %s}' % text, b'{"b": 3}']
    found, refused = parsed(bodies, schema)
    assert found == [{"a": None, "b": number} for number in (1, 2, 3)]
    assert refused.keys() == {1} and refused[1].startswith("field a: ")


def test_parts_of_a_value_that_do_not_fit(tmp_path: Path) -> None:
    kind = StructType(
        [
            StructField("l", ArrayType(IntegerType())),
            StructField("m", MapType(LongType(), IntegerType())),
            StructField("s", StructType([StructField("x", DateType())])),
        ]
    )
    body = b'{"a": {"l": [1, "x"], "m": {"1": "x", "y": 2, "01": 3, "": 4}, "s": {"x": 5}}}'
    schema = {"a": kind, "_corrupt_record": StringType()}
    (found,) = values(tmp_path, [body], schema, mode="permissive")
    assert found["a"] == {"l": [1, None], "m": [(1, None)], "s": {"x": None}}
    assert found["_corrupt_record"] == body.decode()
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path / "one", schema)
    for text in (
        "field a.l[]: 'x' is no INT", "field a.m[]: 'x' is no INT",
        "field a.m (key): 'y' is no BIGINT", "field a.m: the key '01' occurs twice",
        "field a.m: a key is empty", "field a.s.x: 5 is no DATE",
    ):  # fmt: skip
        assert text in str(raised.value)


def test_a_time_beyond_the_years_is_refused_within_other_values() -> None:
    late = b'"9999-12-31T23:59:59-00:01"'
    kind = StructType([StructField("x", TimestampType())])
    for its, text, value in (
        (ArrayType(TimestampType()), b"[%s]", [None]),
        (MapType(StringType(), TimestampType()), b'{"x": %s}', [("x", None)]),
        (kind, b'{"x": %s}', {"x": None}),
    ):
        found, refused = parsed([b"{}", b'{"a": %s}' % (text % late)], {"a": its})
        assert found == [{"a": None}, {"a": value}] and refused.keys() == {1}


def test_a_variant_holds_any_value() -> None:
    texts = [b'{"x": [1, 2.50, null, "y"]}', b'"x"', b"12345678901234567890", b"true"]
    found, _ = parsed([b'{"a": %s}' % text for text in texts], {"a": VariantType()})
    spelled = [VariantUtils.to_json(row["a"]["value"], row["a"]["metadata"]) for row in found]
    assert [json.loads(text) for text in spelled] == [json.loads(text) for text in texts]
    assert "2.5" in spelled[0]
    assert parsed([b'{"a": null}'], {"a": VariantType()}) == ([{"a": None}], {})
    beyond = [b'{"a": 1e400}', b'{"a": [{"b": -1e400}]}', b'{"a": 1%s}' % (b"0" * 400)]
    found, refused = parsed(beyond, {"a": VariantType()})
    assert found == [{"a": None}] * 3 and refused.keys() == {0, 1, 2}


def test_a_type_that_no_body_has_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"field a has type INTERVAL .*: declare it as STRING"
    ):
        values(tmp_path, [b"{}"], {"a": DayTimeIntervalType()})
    with pytest.raises(ConfigurationError, match="field _corrupt_record has type INT: give"):
        read(tmp_path / "one", {"_corrupt_record": IntegerType()})


# -- modes ---------------------------------------------------------------------------------------
BAD = [b'{"a":1,"b":"x"}', b'{"a":"y","b":"z"}', b"\xff", b'{"a":4}']
SCHEMA_OF_BAD = {"a": IntegerType(), "_corrupt_record": StringType(), "b": StringType()}


def test_the_record_that_does_not_fit_stands_beside_its_fields(tmp_path: Path) -> None:
    assert values(tmp_path, BAD, SCHEMA_OF_BAD, mode="PERMISSIVE") == [
        {"a": 1, "_corrupt_record": None, "b": "x"},
        {"a": None, "_corrupt_record": '{"a":"y","b":"z"}', "b": "z"},
        {"a": None, "_corrupt_record": "\ufffd", "b": None},
        {"a": 4, "_corrupt_record": None, "b": None},
    ]
    named = read(
        tmp_path / "one",
        {"a": IntegerType(), "why": BinaryType()},
        mode="permissive",
        columnNameOfCorruptRecord="why",
    )
    assert [row["value"]["why"] for row in named] == [None, BAD[1], BAD[2], None]


def test_what_does_not_fit_becomes_dead_letters_once(tmp_path: Path) -> None:
    log = write_log(tmp_path / "one", [bodies_run(BAD, key=b"k")])
    options = {"mode": "dead_letter", "dead_letters": str(tmp_path / "dead")}
    for _ in range(2):
        rows = read(log.directory, {"a": IntegerType()}, **options)
        assert [(row["txid"], row["value"]) for row in rows] == [(1, {"a": 1}), (4, {"a": 4})]
    letters = pq.read_table(tmp_path / "dead").to_pylist()
    assert [each["position"] for each in letters] == [2, 3]
    assert [each["body"] for each in letters] == BAD[1:3]
    first = letters[0]
    assert list(first) == SCHEMA.names
    assert first["reason"] == "field a: 'y' is no INT" and first["source"] == "one"
    assert (first["topic"], first["key"], first["command"]) == ("orders", b"k", "publish")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "lenient"}, "give failfast or permissive or dropmalformed or dead_letter"),
        ({"mode": "dead_letter"}, "belong together"),
        ({"dead_letters": "/tmp/x"}, "belong together"),
        ({"mode": "dead_letter", "dead_letters": "topic:x"}, "write their letters to a directory"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ReadOptions.of({"path": ".", **options})


def test_a_record_that_is_no_message_is_never_refused(tmp_path: Path) -> None:
    run = bodies_run([b"no json", b'{"a": 7}'], command=Command.DELETE)
    log = write_log(tmp_path / "one", [run])
    assert [row["value"] for row in read(log.directory, {"a": IntegerType()})] == [None, {"a": 7}]


# -- message types -------------------------------------------------------------------------------
TREE = {"n": 7, "s": "x", "f": 1.5, "l": [1, 2], "d": {"x": 1}, "b": b"\0\1"}
OF_TREE = {
    "n": IntegerType(),
    "s": StringType(),
    "f": DecimalType(5, 2),
    "l": ArrayType(LongType()),
    "d": MapType(StringType(), LongType()),
    "b": BinaryType(),
    "none": DateType(),
}
OF_TREE_READ = {
    "n": 7, "s": "x", "f": Decimal("1.50"), "l": [1, 2], "d": [("x", 1)], "b": b"\0\1",
    "none": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("message_type", "body"),
    [("msgpack", msgpack.packb(TREE)), ("bson", bytes(bson.BSON.encode(TREE)))],
    ids=["msgpack", "bson"],
)
def test_binary_types_are_read(tmp_path: Path, message_type: str, body: bytes) -> None:
    bodies = [body, b"", b"\xc1", body]
    schema = OF_TREE | {"_corrupt_record": BinaryType()}
    found = values(tmp_path, bodies, schema, message_type, mode="permissive")
    sound = OF_TREE_READ | {"_corrupt_record": None}
    assert found[0] == found[3] == sound and found[1] is None
    assert found[2] == dict.fromkeys(schema) | {"_corrupt_record": b"\xc1"}
    with pytest.raises(ConfigurationError, match=rf"7\|3\|.*no message of type {message_type}"):
        read(tmp_path / "one", OF_TREE)


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    trees: list[Any] = [float("nan"), float("inf"), {"x": [float("nan")]}]
    bodies = [msgpack.packb({"a": tree}) for tree in trees]
    found = values(tmp_path, bodies, {"a": DoubleType()}, "msgpack", mode="permissive")
    assert str(found) == "[{'a': nan}, {'a': inf}, {'a': None}]"
    texts = read(tmp_path / "one", {"a": StringType()}, mode="permissive")
    assert [row["value"]["a"] for row in texts] == ["nan", "inf", None]


def test_the_texts_of_fix_are_read_as_numbers_and_times(tmp_path: Path) -> None:
    schema = {
        "35": StringType(),
        "38": IntegerType(),
        "44": DoubleType(),
        "43": BooleanType(),
        "60": TimestampType(),
        "75": DateType(),
        "6": DecimalType(10, 4),
        "58": ArrayType(StringType()),
        "96": BinaryType(),
    }
    sound = (
        b"35=D|38=100|44=1.5|43=Y|60=20260102-03:04:05.678|75=20260102|6=1.2500|58=x|58=y|96=\xff|"
    )
    bodies = [
        each.replace(b"|", b"\1") for each in (sound, b"58=z|38=|", b"38=1_0|44=nan|58=\xff|")
    ]
    found = values(tmp_path, bodies, schema, "fix", mode="permissive")
    assert found[0] == {
        "35": "D",
        "38": 100,
        "44": 1.5,
        "43": True,
        "60": dt.datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "75": dt.date(2026, 1, 2),
        "6": Decimal("1.2500"),
        "58": ["x", "y"],
        "96": b"\xff",
    }
    assert found[1] == dict.fromkeys(schema) | {"58": ["z"]}
    assert found[2] == dict.fromkeys(schema) | {"58": [None]}
    with pytest.raises(ConfigurationError, match="field 38: '1_0' is no INT; field 44: 'nan'"):
        read(tmp_path / "one", schema)


def test_xml_and_nvfix_are_read(tmp_path: Path) -> None:
    order = StructType(
        [StructField("@id", LongType()), StructField("leg", ArrayType(DoubleType()))]
    )
    body = b"<order id='7'><leg>1.5</leg><leg>2</leg></order>"
    found = values(tmp_path / "x", [body], {"order": order}, "xml")
    assert found == [{"order": {"@id": 7, "leg": [1.5, 2.0]}}]
    assert values(
        tmp_path / "n", [b"n=7\1s=x\1"], {"n": LongType(), "s": StringType()}, "nvfix"
    ) == [{"n": 7, "s": "x"}]


def test_types_of_a_configuration_stand_beside_one_another(tmp_path: Path) -> None:
    """One journal holds json, a composite, a type that nobody defined, and one without fields."""
    part = b'{"n": 1}'
    both = len(part).to_bytes(4, "big") + part + (4).to_bytes(4, "big") + b"n=2\1"
    runs = [
        bodies_run([b'{"n": 1}', b'{"n": 2}'], "json", 1),
        bodies_run([both], "both", 3),
        bodies_run([b"\0"], "binary", 4),
        bodies_run([b'{"n": 5}'], "trades", 5),
        bodies_run([b'{"n": 6}', b""], "unknown", 6),
    ]
    log = write_log(tmp_path / "Chicago-1", runs)
    types = (
        TypeDefinition("both", "composite-local", {"parts": ["json", "nvfix"]}),
        TypeDefinition("trades", "json"),
    )
    InstanceConfig("Chicago-1", "Chicago", type_definitions=types).save(log.directory)
    inner = StructType([StructField("n", LongType())])
    schema = {"n": LongType(), "0": inner, "1": inner}
    found = [row["value"] for row in read(log.directory, schema, mode="permissive")]
    none = dict.fromkeys(schema)
    assert found == [
        none | {"n": 1},
        none | {"n": 2},
        none | {"0": {"n": 1}, "1": {"n": 2}},
        None,
        none | {"n": 5},
        None,
        None,
    ]
    with pytest.raises(ConfigurationError, match=r"7\|6\|.*no message type is called 'unknown'"):
        read(log.directory, schema)
    assert [row["txid"] for row in read(log.directory, schema, mode="dropmalformed")] == [
        1, 2, 3, 4, 5, 7,
    ]  # fmt: skip


def test_names_that_are_escaped_in_a_body() -> None:
    inner = StructType([StructField("x\\", LongType())])
    schema = {'a"\n': LongType(), "ü": LongType(), "s": inner}
    bodies = [
        b'{"a\\"\\n": 1, "\\u00fc": 2, "s": {"x\\\\": 3}, "t": "x\\":"}',
        '{"f0": 9, "ü": 2}'.encode(),
    ]
    assert parsed(bodies, schema) == (
        [{'a"\n': 1, "ü": 2, "s": {"x\\": 3}}, {'a"\n': None, "ü": 2, "s": None}],
        {},
    )
    del schema['a"\n']
    assert parsed(bodies, schema)[0] == [{"ü": 2, "s": {"x\\": 3}}, {"ü": 2, "s": None}]


def test_spark_takes_every_type(spark: Any, tmp_path: Path) -> None:
    """Through Spark: DDL of all types, the variant among them, and the mode as Spark spells it."""
    body = {
        "t": "2026-01-02T03:04:05Z", "n": "2026-01-02T03:04:05", "d": "2026-01-02", "e": 1.5,
        "m": {"x": [1]}, "v": {"x": [1, "y"]}, "s": 7, "b": "AAE=", "i": "x",
    }  # fmt: skip
    log = write_log(tmp_path / "one", [bodies_run([json.dumps(body).encode(), b"null"])])
    table = (
        spark.read.format("raylay")
        .option(
            "schema",
            "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, e DECIMAL(5,2), m MAP<STRING, ARRAY<INT>>,"
            " v VARIANT, s STRING, b BINARY, i INT, bad STRING",
        )
        .option("columnNameOfCorruptRecord", "bad")
        .option("mode", "PERMISSIVE")
        .option("columns", "txid")
        .load(str(log.directory))
        .orderBy("txid")
        .selectExpr(
            "value.*",
            "variant_get(value.v, '$.x[1]', 'string') y",
            "txid",
            "value IS NULL AS no",
        )
        .drop("v")
    )
    first, second = table.collect()
    assert first.asDict() == {
        "t": dt.datetime(2026, 1, 2, 3, 4, 5), "n": dt.datetime(2026, 1, 2, 3, 4, 5),
        "d": dt.date(2026, 1, 2), "e": Decimal("1.50"), "m": {"x": [1]}, "s": "7", "b": b"\0\1",
        "i": None, "bad": json.dumps(body), "y": "y", "txid": 1, "no": False,
    }  # fmt: skip
    assert second["bad"] == "null" and second["no"] is False and second["s"] is None


# -- inference -----------------------------------------------------------------------------------
def inferred(directory: Path, **options: str) -> str:
    """The DDL of `value`."""
    given = {"path": str(directory), "columns": "txid", "inferSchema": "true", **options}
    found = RaylaySource(given).schema()
    before = "`txid` BIGINT, `value` STRUCT<"
    assert isinstance(found, str) and found.startswith(before) and found.endswith(">")
    return found.removeprefix(before)[:-1]


def test_a_schema_is_inferred_from_a_sample(tmp_path: Path) -> None:
    bodies = [
        b'{"i": 1, "d": 1, "s": "x", "t": 1, "n": null, "o": {"x": 1}, "l": [], "b`": true}',
        b"no body at all",
        b"",
        b'{"i": -9, "d": 1.5, "s": null, "t": [1], "o": {"y": [null]}, "l": [{"z": 1}, {"z": 2}]}',
        b'{"w": 12345678901234567890, "W": 1, "h": 1e400, "e": {}, "": 1, "v": [1, "x"]}',
    ]
    log = write_log(tmp_path / "one", [bodies_run(bodies)])
    assert inferred(log.directory) == (
        "`i` BIGINT, `d` DOUBLE, `s` STRING, `t` STRING, `n` STRING, "
        "`o` STRUCT<`x`: BIGINT, `y`: ARRAY<STRING>>, `l` ARRAY<STRUCT<`z`: BIGINT>>, "
        "`b``` BOOLEAN, `w` DECIMAL(38,0), `h` DOUBLE, `e` STRING, `v` ARRAY<STRING>"
    )
    assert inferred(log.directory, sampleSize="1", mode="permissive").endswith(
        "`b``` BOOLEAN, `_corrupt_record` STRING"
    )
    fields = [StructField("value", StructType([StructField("i", LongType())]))]
    options = {"path": str(log.directory), "inferSchema": "true"}
    with pytest.raises(ConfigurationError, match=r"a stream takes no .*now .* `i` BIG"):
        RaylaySource(options).streamReader(StructType(fields)).initialOffset()
    with pytest.raises(ConfigurationError, match="either the option schema or inferSchema"):
        RaylaySource(options | {"schema": "a INT"}).schema()


def test_a_sample_is_of_the_whole_journal_and_of_what_is_selected(tmp_path: Path) -> None:
    old, new = [b'{"old": 1}'] * 500, [b'{"new": 1}'] * 500
    runs = [
        bodies_run(old, first=1),
        bodies_run(new, first=501),
    ]
    rare = bodies_run([msgpack.packb({"rare": b"x", "d": {"e": 1.5}})], "msgpack", 1001)
    rare.topic = b"rare"
    runs += [rare, bodies_run(new, first=1002)]
    runs.append(bodies_run([b'{"gone": 1}'], first=1502, command=Command.DELETE))
    log = write_log(tmp_path / "one", runs)
    assert inferred(log.directory, sampleSize="64") == "`old` BIGINT, `new` BIGINT"
    assert inferred(log.directory, sampleSize="64", topic="rare") == (
        "`rare` BINARY, `d` STRUCT<`e`: DOUBLE>"
    )
    assert inferred(log.directory, starting='{"*": 1002}') == "`new` BIGINT"
    with pytest.raises(ConfigurationError, match="no message from whose body"):
        inferred(log.directory, starting='{"*": 1501}')


def test_values_that_are_nested_deeply_are_declared_as_text(tmp_path: Path) -> None:
    body = b'{"a":' * 20 + b"1" + b"}" * 20
    log = write_log(tmp_path / "one", [bodies_run([body])])
    text = inferred(log.directory)
    assert text.count("STRUCT<") == 11 and "`a`: STRING>" in text


def test_an_inferred_schema_reads_every_body(spark: Any, tmp_path: Path) -> None:
    bodies = [b'{"a b": 1, "x": {"y": "z"}}', b'{"a b": 1.5, "l": [1, "q"]}', b"{"]
    log = write_log(tmp_path / "one", [bodies_run(bodies)])
    table = (
        spark.read.format("raylay")
        .options(columns="txid", inferSchema="true", mode="permissive")
        .load(str(log.directory))
    )
    assert [row["value"].asDict(recursive=True) for row in table.orderBy("txid").collect()] == [
        {"a b": 1.0, "x": {"y": "z"}, "l": None, "_corrupt_record": None},
        {"a b": 1.5, "x": None, "l": ["1", "q"], "_corrupt_record": None},
        {"a b": None, "x": None, "l": None, "_corrupt_record": "{"},
    ]
