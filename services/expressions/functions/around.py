"""Functions over the context of a message, and functions for values that cannot be written as
literals."""

from __future__ import annotations

from operator import attrgetter

from raylay.services.expressions.functions.registry import Function, FunctionGroup
from raylay.services.expressions.values import NAN, Value
from raylay.services.messages.lossless_text import text_of

AROUND = FunctionGroup()

_ASKED = {
    "MESSAGE_SIZE": ("message", "size_bytes"),
    "CORRELATION_ID": ("message", "correlation_id"),
    "TOPIC_NAME": ("message", "topic"),
    "BOOKMARK": ("message", "bookmark"),
    "LAST_UPDATED": ("state", "last_updated"),
    "LAST_LEASED": ("state", "last_leased"),
    "LEASE_COUNT": ("state", "lease_count"),
    "SOW_KEY": ("state", "sow_key"),
    "SOW_KEY_HASH": ("state", "sow_key_hash"),
    "LAST_READ": ("state", "last_read"),
    "CLIENT_NAME": ("client", "client_name"),
    "USER": ("client", "user"),
    "REMOTE_ADDRESS": ("client", "remote_address"),
    "CLIENT_VERSION": ("client", "client_version"),
    "CONNECTION_NAME": ("client", "connection_name"),
    "AMPS_INSTANCE_NAME": ("instance", "instance"),
    "AMPS_GROUP_NAME": ("instance", "group"),
}
for _name, (_needs, _attribute) in _ASKED.items():
    AROUND[_name] = Function(
        _name, attrgetter(_attribute), needs=_needs, is_deterministic=_name != "LAST_READ"
    )


@AROUND.add("COALESCE", "value...", takes_null=True)
def coalesce(*given: Value) -> Value:
    """Returns the first argument that is not NULL."""
    return next((each for each in given if each is not None), None)


@AROUND.add("TRUE_VALUE")
def true_value() -> bool:
    """Returns TRUE."""
    return True


@AROUND.add("FALSE_VALUE")
def false_value() -> bool:
    """Returns FALSE."""
    return False


@AROUND.add("NAN_VALUE")
def nan_value() -> float:
    """Returns NaN."""
    return NAN


@AROUND.add("CHAR_VALUE", "integer")
def char_value(byte: int) -> str | None:
    """Returns the string of one byte, 0 to 255."""
    return text_of(bytes((byte,))) if 0 <= byte <= 255 else None
