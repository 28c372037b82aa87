"""What every message type must keep: no body harms it, deltas lead where they should."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from raylay.services.errors import MessageTypeError, SowKeyError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.composite import CompositeLocal
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.query.ordering import place_of
from raylay.services.sow.query.projection import Projection

FUZZ_BODIES = 1_500
FUZZ_S_MAX = 20.0
"""For all of them: each takes microseconds."""


def mutated(corpus: list[bytes], seed: int, count: int = FUZZ_BODIES) -> Iterator[bytes]:
    """Bodies that are nearly those of a corpus: flipped, cut, doubled, joined, made up."""
    chance = random.Random(seed)
    for _ in range(count):
        body = bytearray(chance.choice(corpus))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(7):
                case 0 if body:
                    body[at % len(body)] = chance.randrange(256)
                case 1 if body:
                    body[at % len(body)] ^= 1 << chance.randrange(8)
                case 2:
                    del body[at:]
                case 3:
                    del body[at : at + chance.randint(1, 8)]
                case 4:
                    body[at:at] = chance.randbytes(chance.randint(1, 8))
                case 5:
                    body[at:at] = body[at : at + chance.randint(1, 40)]
                case 6:
                    other = chance.choice(corpus)
                    body[at:] = other[chance.randrange(len(other) + 1) :]
        yield bytes(body)


def check_fuzz(kind: MessageType, corpus: list[bytes], seed: int = 1) -> tuple[int, int]:
    """Parses what is hardly a message. What is one comes back as it was from its own bytes.

    Returns:
        How many were messages, and how many were refused.
    """
    read = refused = 0
    began = time.thread_time()
    for body in mutated(corpus, seed):
        try:
            tree = kind.parse(body)
        except MessageTypeError as error:
            refused += 1
            assert error.message_type == kind.name and kind.name in str(error), body
            assert "\n" not in str(error) and len(str(error)) < 300, body
            assert error.offset is None or 0 <= error.offset <= len(body), body
            continue
        read += 1
        assert type(tree) is dict, body
        try:
            again = kind.serialize(tree)
        except MessageTypeError:
            continue  # a body may hold what the type itself would write in another way
        # As text: what is no number is not equal to itself.
        assert repr(kind.parse(again)) == repr(tree), body
        assert kind.parse(memoryview(body)).keys() == tree.keys()
    assert time.thread_time() - began < FUZZ_S_MAX
    return read, refused


def reframed(corpus: list[bytes], seed: int, count: int = FUZZ_BODIES) -> Iterator[bytes]:
    """Bodies of a corpus with some bytes changed and none moved: the framing stays valid, and what
    stands behind it does not."""
    chance = random.Random(seed)
    for _ in range(count):
        body = bytearray(chance.choice(corpus))
        for _ in range(chance.randint(0, 3)):
            if body:
                body[chance.randrange(len(body))] = chance.choice((0xFF, 0xC0, 0x80, 0, 0x7F, 0xED))
        yield bytes(body)


def check_whatever_comes(kind: MessageType, corpus: list[bytes], seed: int = 2) -> int:
    """Merges, compares, reads, writes, keys, cuts and filters bodies that are hardly messages.

    Returns:
        How many operations ended with an error, each a MessageTypeError of the type.
    """
    refused = 0
    bodies = [*reframed(corpus, seed), *mutated(corpus, seed)]
    began = time.thread_time()
    for before, after in itertools.pairwise(bodies):
        for work in (
            partial(kind.merge, before, after),
            partial(kind.difference, before, after, empties=len(after) % 2 == 0),
            partial(_written_again, kind, after),
            partial(_keyed_and_filtered, kind, after),
            partial(kind.reader_of(frozenset(("id", "a"))), [before, after]),
        ):
            try:
                work()
            except MessageTypeError as error:
                refused += 1
                assert len(str(error)) < 800, (before, after)
        if time.thread_time() - began > FUZZ_S_MAX:
            break
    return refused


def _written_again(kind: MessageType, body: bytes) -> bytes:
    return kind.serialize(kind.parse(body))


def _keyed_and_filtered(kind: MessageType, body: bytes) -> None:
    """What a SOW topic and its clients do with the fields, by each name that the body has."""
    tree = kind.parse(body)
    names = [name for name in tree if name and not set(name) & set("/[]")][:8]
    for name in names:
        with suppress(SowKeyError):
            assert len(KeyRule("orders", [f"/{name}"]).key_of(tree)) == 32
        if Ability.SELECT not in kind.lacks and not set(name) & set(","):
            assert set(Projection(f"-/,+/{name}", kind).of_tree(tree)) <= {name}
        _FILTERS.matches({"id": tree[name]}, NO_CONTEXT)
    place_of(tree)


_FILTERS = expression(
    "/id > 1 AND /id + 1 < 5 OR LENGTH(/id) = 3 OR /id LIKE 'x' OR /id IN ('a', 2) OR "
    "ARRAY_SUM(/id) > 1 OR UPPER(/id) BEGINS WITH ('A') OR ROUND(/id, 2) = 1 OR /id IS NAN"
)


def check_deltas(kind: MessageType, bodies: list[bytes], without_value: object) -> None:
    """The laws of merging, for each pair of bodies.

    Args:
        without_value: what a field has that the later body lacks.
    """
    for before in bodies:
        assert kind.parse(kind.merge(before, before)) == kind.parse(before)
        nothing = kind.difference(before, before)
        assert kind.parse(kind.merge(before, nothing)) == kind.parse(before)
        for after in bodies:
            delta = kind.difference(before, after)
            expected, lacking = kind.parse(after), kind.parse(before)
            result = kind.parse(kind.merge(before, delta))
            assert _without(result, expected, without_value) == expected, (before, after)
            assert result.keys() == expected.keys() | lacking.keys()
            silent = kind.difference(before, after, empties=False)
            assert len(silent) <= len(delta)
            kept = kind.parse(kind.merge(before, silent))
            _check_kept(kept, lacking, expected)
            for name, value in expected.items():
                if type(value) is dict and not isinstance(kind, CompositeLocal):
                    keyed = kind.parse(kind.difference(before, after, [(name,)]))
                    assert keyed[name] == value, "a key is told whole"


def _check_kept(kept: Any, lacking: dict[str, Any], after: dict[str, Any]) -> None:
    """What the later one lacks stays as it was."""
    for name, value in lacking.items():
        if name not in after:
            assert kept[name] == value, name
        elif type(value) is dict and type(after[name]) is dict:
            _check_kept(kept[name], value, after[name])


def _without(tree: dict[str, object], kept: dict[str, object], empty: object) -> dict[str, object]:
    """A tree without the empty fields that another one lacks."""
    result = {}
    for name, value in tree.items():
        other = kept.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            value = _without(value, other, empty)
        if name in kept or value != empty:
            result[name] = value
    return result
