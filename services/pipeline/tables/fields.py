"""The values of a body's fields in the types that a schema declares.

`value_reader` makes the function that turns a value of a body's tree (services/messages/types) into
one of a declared type. It never rounds, truncates or guesses: a value that the type cannot
represent is a misfit, and its place is null.

| declared | taken from |
|---|---|
| STRING | a text; a number or boolean as the body spells it; an object or array as JSON |
| integers | whole numbers in the type's range |
| FLOAT, DOUBLE | numbers in the type's range |
| DECIMAL | numbers and texts with at most its digits |
| BOOLEAN | booleans |
| DATE, TIMESTAMP, TIMESTAMP_NTZ | ISO-8601 texts; TIMESTAMP also: seconds since 1970 |
| BINARY | bytes; a JSON text in Base64 |
| ARRAY, MAP, STRUCT | arrays and objects |
| VARIANT | any value that JSON can represent |

The values of `fix`, `nvfix` and `xml` are texts. From these, and only from these, numbers, booleans
and times are read as well; an empty text is null.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.base import shown

Misfits = list[str]
Reader = Callable[[Any, Misfits], Any]
"""Returns the value for Arrow, or adds a sentence to the misfits and returns None."""

FLOAT_MAX = 3.4028234663852886e38
DOUBLE_MAX = 1.7976931348623157e308
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
YEARS_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and last microsecond of the years 1 to 9999, which Python and SQL have."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FIX_TIME = re.compile(r"(\d{8})-(\d\d:\d\d:\d\d(?:\.\d{1,9})?)")
_EXACT = Context(prec=400, traps=[InvalidOperation, Inexact])
_TRUTHS = {"true": True, "false": False, "Y": True, "N": False}


class NumberText:
    """A number of a JSON body with a point or an exponent, as the body spells it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _encoded(value: Any) -> Any:
    if isinstance(value, NumberText):
        return msgspec.Raw(value.text.encode())
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=_encoded)


def json_of(value: Any) -> str:
    """Returns a value as JSON, its numbers as the body spells them, bytes in Base64.

    Raises:
        ValueError: JSON has no such number.
    """
    _check_each(value, _check_finite)
    return _encoder.encode(value).decode()


def _check_finite(value: Any) -> None:
    if type(value) is float and not math.isfinite(value):
        raise ValueError("JSON has no such number")


def _check_each(value: Any, check: Callable[[Any], None]) -> None:
    """Checks a value, or each one within an object or an array."""
    if type(value) is dict:
        value = list(value.values())
    if type(value) is list:
        for each in value:
            _check_each(each, check)
    else:
        check(value)


def is_variant(kind: pa.DataType) -> bool:
    """Returns whether a type is Spark's VARIANT in Arrow."""
    return bool(
        pa.types.is_struct(kind)
        and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)
    )


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Properties of the bodies that the values come from.

    Attributes:
        texts: whether all values are texts, as those of `fix`.
        base64: whether bytes are written as Base64, as in JSON.
    """

    texts: bool = False
    base64: bool = False


def value_reader(kind: pa.DataType, path: str, source: FieldSource) -> Reader:
    """Returns the reader of a declared type.

    Args:
        path: the field's name, for the sentence about a misfit.

    Raises:
        ConfigurationError: no body has values of this type.
    """
    inner = _nested(kind, path, source)
    if inner is None:
        inner = _guarded(_plain(kind, path, source), kind, path)
    if source.texts and not pa.types.is_string(kind):
        return lambda value, misfits: None if value in (None, "") else inner(value, misfits)
    return lambda value, misfits: None if value is None else inner(value, misfits)


def _nested(kind: pa.DataType, path: str, source: FieldSource) -> Reader | None:
    if is_variant(kind):
        return None
    if pa.types.is_struct(kind):
        return _struct(kind, path, source)
    if pa.types.is_map(kind):
        return _map(kind, path, source)
    if pa.types.is_list(kind):
        return _list(kind, path, source)
    return None


def _misfit(value: Any, kind: pa.DataType, path: str) -> str:
    return f"field {path}: {_show(value)} is no {sql_name(kind)}"


def _show(value: Any) -> str:
    text = value.text if isinstance(value, NumberText) else str(value)
    return text[:60] if isinstance(value, NumberText | Decimal) else shown(value)


def sql_name(kind: pa.DataType) -> str:
    """Returns the name of a type in Spark's SQL, such as `ARRAY<BIGINT>`."""
    if is_variant(kind):
        return "VARIANT"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{each.name}: {sql_name(each.type)}' for each in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    return from_arrow_type(kind).simpleString().upper()


def _guarded(read: Callable[[Any], Any], kind: pa.DataType, path: str) -> Reader:
    def guarded(value: Any, misfits: Misfits) -> Any:
        try:
            found = read(value)
        except (ValueError, ArithmeticError, TypeError, NotImplementedError, RecursionError):
            found = None  # UnicodeError is a ValueError
        if found is None:
            misfits.append(_misfit(value, kind, path))
        return found

    return guarded


def _struct(kind: pa.StructType, path: str, source: FieldSource) -> Reader:
    readers = {
        field.name: value_reader(field.type, f"{path}.{field.name}", source) for field in kind
    }

    def read(value: Any, misfits: Misfits) -> Any:
        if type(value) is not dict:
            misfits.append(_misfit(value, kind, path))
            return None
        return {name: each(value.get(name), misfits) for name, each in readers.items()}

    return read


def _list(kind: pa.ListType, path: str, source: FieldSource) -> Reader:
    element = value_reader(kind.value_type, f"{path}[]", source)

    def read(value: Any, misfits: Misfits) -> Any:
        if type(value) is not list:
            if not source.texts:
                misfits.append(_misfit(value, kind, path))
                return None
            value = [value]  # a tag or an element that occurs once
        return [element(each, misfits) for each in value]

    return read


def _map(kind: pa.MapType, path: str, source: FieldSource) -> Reader:
    # The names in a body are texts, whatever its values are.
    key = value_reader(kind.key_type, f"{path} (key)", FieldSource(texts=True))
    element = value_reader(kind.item_type, f"{path}[]", source)

    def read(value: Any, misfits: Misfits) -> Any:
        if type(value) is not dict:
            misfits.append(_misfit(value, kind, path))
            return None
        found: dict[Any, Any] = {}
        for name, each in value.items():
            made = key(name, misfits)
            if made in found:
                misfits.append(f"field {path}: the key {shown(name)} occurs twice")
            elif made is not None:
                found[made] = element(each, misfits)
            elif not name:
                misfits.append(f"field {path}: a key is empty")
        return list(found.items())

    return read


def _plain(kind: pa.DataType, path: str, source: FieldSource) -> Callable[[Any], Any]:
    """Returns the reader of a type without fields. It returns None, or raises, for a misfit."""
    if is_variant(kind):
        return _variant
    if pa.types.is_string(kind):
        return text_of
    if pa.types.is_integer(kind):
        most = (1 << (kind.bit_width - 1)) - 1
        return lambda value: _whole(value, most, source.texts)
    if pa.types.is_floating(kind):
        most_real = FLOAT_MAX if kind.bit_width == 32 else DOUBLE_MAX
        return lambda value: _real(value, most_real, source.texts)
    if pa.types.is_boolean(kind):
        return lambda value: _truth(value, source.texts)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale, source.texts)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_timestamp(kind):
        return _time if kind.tz else _local_time
    if pa.types.is_binary(kind):
        return lambda value: _bytes(value, source.base64)
    raise ConfigurationError(
        f"field {path} has type {sql_name(kind)}, which no body has: declare it as STRING and "
        "cast it"
    )


def text_of(value: Any) -> str | None:
    """Returns a value as a text; None where it has none."""
    if type(value) is str:
        return value if value.isascii() or value.encode() else None  # or it raises
    if type(value) is bytes:
        return value.decode()
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, NumberText):
        return value.text
    if isinstance(value, dict | list):
        return json_of(value)
    return repr(value) if type(value) is float else str(value)


def _whole(value: Any, most: int, texts: bool) -> int | None:
    if texts and type(value) is str and _WHOLE.fullmatch(value):
        value = int(value)
    return value if type(value) is int and -most - 1 <= value <= most else None


def _real(value: Any, most: float, texts: bool) -> float | None:
    spelled = isinstance(value, NumberText)
    if spelled:
        value = float(value.text)
    elif type(value) is int or (texts and type(value) is str and _REAL.fullmatch(value)):
        spelled, value = True, float(value)
    if type(value) is not float:
        return None
    # What a binary type itself calls infinite or not a number, is that.
    return value if -most <= value <= most or not (spelled or math.isfinite(value)) else None


def _truth(value: Any, texts: bool) -> bool | None:
    if texts and type(value) is str:
        return _TRUTHS.get(value)
    return value if type(value) is bool else None


def _decimal(value: Any, precision: int, scale: int, texts: bool) -> Decimal | None:
    if isinstance(value, NumberText):
        value = value.text
    if type(value) is float:
        value = repr(value)
    if type(value) is str:
        # The decoder of JSON bodies takes whatever text Decimal does.
        value = Decimal(value) if not texts or _REAL.fullmatch(value) else None
    if type(value) is int:
        value = Decimal(value)
    if type(value) is not Decimal or not value.is_finite():
        return None
    found = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return found if found == 0 or found.adjusted() < precision - scale else None


def _date(value: Any) -> dt.date | None:
    if type(value) is dt.date:
        return value
    return dt.date.fromisoformat(value) if type(value) is str else None


def _iso(value: Any) -> dt.datetime | None:
    if type(value) is dt.datetime:
        return value
    if type(value) is not str:
        return None
    if match := _FIX_TIME.fullmatch(value):
        day, time = match.groups()
        value = f"{day[:4]}-{day[4:6]}-{day[6:]}T{time}"
    try:
        # As the decoder of JSON bodies: it rounds to the microsecond.
        return msgspec.convert(value, dt.datetime)
    except msgspec.ValidationError:
        return dt.datetime.fromisoformat(value)


def _time(value: Any) -> dt.datetime | None:
    if isinstance(value, NumberText):
        value = Decimal(value.text)
    if type(value) in (int, float, Decimal):
        return _EPOCH + dt.timedelta(microseconds=int(Decimal(value) * 1_000_000))
    found = _iso(value)
    if found is None:
        return None
    return found.astimezone(dt.UTC) if found.tzinfo is not None else found


def _local_time(value: Any) -> dt.datetime | None:
    found = _iso(value)
    return found if found is not None and found.tzinfo is None else None


def _bytes(value: Any, in_base64: bool) -> bytes | None:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        return None
    if not in_base64:
        return value.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return None


def _variant(value: Any) -> dict[str, bytes]:
    from pyspark.sql.variant_utils import VariantUtils

    _check_each(value, _check_range)
    made, metadata = VariantUtils.parse_json(json_of(value))
    return {"value": made, "metadata": metadata}


def _check_range(value: Any) -> None:
    """Raises ValueError or OverflowError where a variant would hold an infinity in place of a
    number."""
    number = value.text if isinstance(value, NumberText) else value
    if isinstance(value, NumberText | int) and not math.isfinite(float(number)):
        raise ValueError("a variant holds no such number")
