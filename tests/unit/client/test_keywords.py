"""Arguments that are misspelt or of a wrong type."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from raylay.services.client import Client
from raylay.services.client.keywords import checks_keywords

pytestmark = pytest.mark.covers("Clients and protocol", "a call with a wrong argument")


@checks_keywords
def asked(
    topic: str,
    *,
    count: int = 1,
    rate: float | None = None,
    live: bool = False,
    keys: Sequence[bytes] = (),
) -> tuple[Any, ...]:
    return topic, count, rate, live, keys


@checks_keywords
async def waited(topic: str, timeout_s: float | None = None) -> tuple[Any, ...]:
    return topic, timeout_s


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        (("t",), {}),
        (("t",), {"count": 5, "rate": 1, "live": True, "keys": [b"k"]}),
        (("t",), {"count": np.int64(5), "rate": np.float32(1.5)}),
        ((), {"topic": "t", "rate": None}),
    ],
)
def test_what_fits_is_handed_on(args: Any, keywords: Any) -> None:
    found = asked(*args, **keywords)
    assert found[0] == "t" and found[1] == keywords.get("count", 1)


@pytest.mark.parametrize(
    ("args", "keywords", "told"),
    [
        ((5,), {}, r"asked\(\): topic is 5, of type int: give a text"),
        ((b"t",), {}, r"topic is b't', of type bytes: give a text"),
        (("t",), {"count": "5"}, r"count is '5', of type str: give a whole number"),
        (("t",), {"count": 1.5}, r"count is 1.5, of type float: give a whole number"),
        (("t",), {"count": True}, r"count is True, of type bool: give a whole number"),
        (("t",), {"rate": "5"}, r"rate is '5', of type str: give a number or None"),
        (("t",), {"live": "no"}, r"live is 'no', of type str: give True or False"),
        (("t",), {"live": 1}, r"live is 1, of type int: give True or False"),
        (("t" * 200,), {"live": "x" * 200}, "live is 'x{99}…, of type str"),
        (("t",), {"cuont": 5}, r"asked\(\) has no argument 'cuont': did you mean 'count'\?"),
        (("t",), {"zzz": 5}, r"has no argument 'zzz': it takes topic, count, rate, live, keys"),
    ],
)
def test_what_does_not_fit_is_named(args: Any, keywords: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        asked(*args, **keywords)


def test_a_coroutine_function_stays_one() -> None:
    assert inspect.iscoroutinefunction(waited)
    assert asyncio.run(waited("t", 5)) == ("t", 5)
    with pytest.raises(TypeError, match=r"waited\(\): timeout_s is '5'"):
        asyncio.run(waited("t", "5"))  # type: ignore[arg-type]
    for name in ("subscribe", "delta_subscribe", "queue_status", "flush", "close"):
        assert inspect.iscoroutinefunction(getattr(Client, name)), "as help and editors show it"
