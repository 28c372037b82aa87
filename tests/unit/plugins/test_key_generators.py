"""Key generators from entry points: found, made with options, and what they give is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError, SowKeyError
from raylay.services.plugins import key_generators
from raylay.services.plugins.key_generators import key_generator

pytestmark = pytest.mark.covers("SOW", "key generators from entry points")


class Unshown:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def ends(topic: str, message: Any) -> Any:
    raise SystemExit(3)


def by_day(options: Mapping[str, str]) -> Callable[[str, Any], Any]:
    if "field" not in options:
        raise ValueError("give a field")

    def key(topic: str, message: Any) -> Any:
        return f"{topic}-{message[options['field']]}"

    return key


FACTORIES: dict[str, Any] = {
    "by_day": by_day,
    "bytes": lambda options: lambda topic, message: b"k",
    "none": lambda options: lambda topic, message: None,
    "long": lambda options: lambda topic, message: b"k" * 256,
    "empty": lambda options: lambda topic, message: "",
    "unshown": lambda options: lambda topic, message: Unshown(),
    "ends": lambda options: ends,
    "no_function": lambda options: "key",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint(name, f"keys:{name}", "raylay.key_generators") for name in FACTORIES]
    entries.append(EntryPoint("broken", "no_such_module:x", "raylay.key_generators"))
    monkeypatch.setattr(key_generators, "entry_points", lambda group: entries)
    load = EntryPoint.load
    monkeypatch.setattr(
        EntryPoint,
        "load",
        lambda self: FACTORIES[self.name] if self.name in FACTORIES else load(self),
    )


def test_it_is_made_with_its_options() -> None:
    assert key_generator("by_day", {"field": "day"})("orders", {"day": "mon"}) == b"orders-mon"
    assert key_generator("bytes", {})("orders", b"whatever") == b"k"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "no key generator is called 'missing': install .*; there are broken, by_day"),
        ("broken", r"broken of the installed no_such_module:x cannot be loaded \(ModuleNotFound"),
        ("by_day", r"does not take its options {} \(ValueError: give a field\)"),
        ("no_function", "gives no function"),
    ],
)
def test_what_cannot_be_used_is_told(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        key_generator(name, {})


@pytest.mark.parametrize(
    ("name", "message", "says"),
    [
        ("by_day", {"a": 1}, "topic t: the key generator by_day refuses this message: KeyError"),
        ("by_day", {"day": "a b"}, "expected a SOW key of at most 255 letters"),
        ("none", {}, "gave no key, but a value of NoneType"),
        ("empty", {}, "gave no key, but an empty one"),
        ("unshown", {}, "gave no key, but a value of Unshown"),
        ("ends", {}, "the key generator ends refuses this message: SystemExit: 3"),
        ("long", {}, "expected a SOW key"),
    ],
)
def test_a_message_without_a_key_is_refused(name: str, message: Any, says: str) -> None:
    with pytest.raises(SowKeyError, match=says):
        key_generator(name, {"field": "day"})("t", message)
