"""The definition of a function, and the context of a message that some functions read.

A function is a Python function of plain values. Its signature says, a word an argument, as what it
takes them: `text`, `number`, `integer`, `array` (all elements, NULL as None), `value` (whatever the
one value is) or `pattern` (a regular expression, which must be written out). Those behind `[` may
be missing; `...` at the end lets the last one repeat. NULL makes NULL, unless it is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from raylay.services.expressions import values
from raylay.services.expressions.values import Value
from raylay.services.expressions.work import SHORT_STEPS, Meter, TooMuchWork, charge

ARGUMENTS_MAX = 255
CONVERTED_TIMES = 3
"""Cost of converting and using an element of an array, relative to looking at one."""
Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(slots=True)
class EvalContext:
    """Values that expressions can read besides the body of a message; None is NULL.

    Attributes:
        size_bytes: length of the body.
        last_updated, last_leased, last_read: Unix times, in seconds.
        now_s: the Unix time, in seconds.
        random_bytes: returns a number of random bytes.
    """

    topic: str | None = None
    size_bytes: int | None = None
    correlation_id: str | None = None
    bookmark: str | None = None
    last_updated: float | None = None
    last_leased: float | None = None
    lease_count: int | None = None
    last_read: float | None = None
    sow_key: str | None = None
    sow_key_hash: int | None = None
    client_name: str | None = None
    user: str | None = None
    remote_address: str | None = None
    client_version: str | None = None
    connection_name: str | None = None
    instance: str | None = None
    group: str | None = None
    now_s: float | None = None
    random_bytes: Callable[[int], bytes] | None = None


NO_CONTEXT = EvalContext()
"""The context of a message of which nothing else is known."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the language.

    Attributes:
        name: name in capital letters; expressions may write it in any case.
        call: the Python function. An exception in it gives NULL, a domain error NaN.
        kinds: kind as which each argument is passed.
        least: number of required arguments.
        repeats: whether the last argument may be repeated.
        takes_null: whether NULL is passed to the function.
        character_steps: steps for each character of its texts (services/expressions/work.py).
        counts: whether the evaluation's meter is its first argument, so that it counts further work
            itself.
        needs: part of the context that the function reads: `message`, `client`, `instance`, `state`
            (of a topic's state or of a queue), `clock` or `chance`; "": nothing. The context is
            then its first argument.
        is_deterministic: whether the same message always gives the same.
        is_aggregate: whether the function needs the messages of a group.
    """

    name: str
    call: Callable[..., Value]
    kinds: tuple[str, ...] = ()
    least: int = 0
    repeats: bool = False
    takes_null: bool = False
    needs: str = ""
    is_deterministic: bool = True
    is_aggregate: bool = False
    character_steps: int = 1
    counts: bool = False

    @property
    def most(self) -> int:
        """Returns the largest number of arguments."""
        return ARGUMENTS_MAX if self.repeats else len(self.kinds)

    def kind_of(self, number: int) -> str:
        """Returns the kind of an argument, counted from 0."""
        return self.kinds[min(number, len(self.kinds) - 1)]

    def bound(self, count: int) -> Callable[..., Value]:
        """Returns a function of a meter, or None, and a number of raw values, after the context if
        it needs one. An argument that is a pattern is passed on unchanged."""
        kinds = [self.kind_of(number) for number in range(count)]
        converters = tuple((_CONVERTERS[kind], kind == "array") for kind in kinds)
        call, takes_null, given = self.call, self.takes_null, bool(self.needs)
        character_steps, counts = self.character_steps, self.counts

        def bound(meter: Meter | None, *raw: Value) -> Value:
            taken: list[Any] = [meter] if counts else []
            if given:
                taken.append(raw[0])
            for (convert, is_array), value in zip(
                converters, raw[1:] if given else raw, strict=True
            ):
                if value.__class__ in values.COMPLEX:
                    if is_array:
                        values.charge_all(meter, value, CONVERTED_TIMES)
                    else:
                        values.charge_scalar(meter, value)
                value = convert(value)
                if value is None and not takes_null:
                    return None
                if value.__class__ is str:
                    steps = character_steps * len(value)
                    if steps > SHORT_STEPS:
                        charge(meter, steps if value.isascii() else 2 * steps)
                taken.append(value)
            return guarded(call, *taken)

        return bound


def guarded(call: Callable[..., Value], *taken: Value) -> Value:
    """Calls the function, and returns its result as a value of the language. A domain error gives
    NaN, any other exception NULL: an installed function must not end an instance."""
    try:
        found = call(*taken)
    except TooMuchWork:
        raise
    except (ValueError, ZeroDivisionError):
        return values.NAN
    except OverflowError:
        return math.inf
    except Exception:
        return None
    if found.__class__ is str:
        return found if 0 < len(found) <= values.TEXT_CHARACTERS_MAX else None
    return values.clipped(found) if found.__class__ is int else found


def _integer(value: Value) -> int | None:
    found = values.number(value)
    return None if found is None or not math.isfinite(found) else int(found)


def _array(value: Value) -> list[Value]:
    if value.__class__ is not list:
        return values.plains(value)
    return [values.scalar(each) for each in values.elements(value)]


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "text": values.text,
    "number": values.number,
    "integer": _integer,
    "array": _array,
    "value": values.scalar,
    "pattern": lambda pattern: pattern,
}


def signature(text: str) -> tuple[tuple[str, ...], int, bool]:
    """Returns the kinds, the number of required arguments, and whether the last one repeats, of
    `text [integer` or `value value...`."""
    repeats = text.endswith("...")
    words = text.removesuffix("...").split()
    least = next((n for n, word in enumerate(words) if word[0] == "["), len(words))
    return tuple(word.lstrip("[") for word in words), least, repeats


class FunctionGroup(dict[str, Function]):
    """The functions of a module, by name, and the decorator that adds them."""

    def add(
        self,
        name: str,
        takes: str = "",
        *,
        takes_null: bool = False,
        needs: str = "",
        is_deterministic: bool = True,
        character_steps: int = 1,
        counts: bool = False,
    ) -> Callable[[Call], Call]:
        """Returns a decorator that makes a Python function a function of the language."""
        kinds, least, repeats = signature(takes)

        def added(call: Call) -> Call:
            self[name] = Function(
                name,
                call,
                kinds,
                least,
                repeats,
                takes_null,
                needs,
                is_deterministic,
                character_steps=character_steps,
                counts=counts,
            )
            return call

        return added


def of_python(name: str, call: Callable[..., Value], takes: str, deterministic: bool) -> Function:
    """Returns an installed function. A result that is no value of the language becomes NULL,
    because operators do not check their operands' types."""
    kinds, least, repeats = signature(takes)

    def called(*taken: Value) -> Value:
        try:
            return _of_the_language(call(*taken))
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException:  # SystemExit would end the instance.
            return None

    return Function(name.upper(), called, kinds, least, repeats, is_deterministic=deterministic)


def _of_the_language(found: Any) -> Value:
    """Returns the result of an installed function as a value of exactly one of the language's
    types."""
    match found:
        case bool() | None:
            return found
        case int():
            return values.clipped(int(found))
        case float():
            return float(found)
        case str():
            return str(found)
        case bytes():
            return bytes(found)
        case list() | tuple():
            return [_of_the_language(each) for each in found]
        case dict():
            return {str(name): _of_the_language(each) for name, each in found.items()}
    return None


Functions = Mapping[str, Function]
"""Functions by their names in capital letters."""
