"""The options `starting` and `ending` of a read."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.tables.offsets import check_window

DAY = "2026-01-02"
DAY_S = "1767312000"


@pytest.mark.parametrize(
    ("starting", "ending"),
    [
        (DAY, "2026-01-01"),
        ("2026-01-02T00:00:01", DAY),
        ("2026-01-02T01:00:00+02:00", "2026-01-01T22:59:59Z"),
        ("20260102T030405Z", DAY_S),
        (DAY_S, "1767311999999"),
        (f"{DAY_S}000000", "1767311999"),
        ('{"a": 5, "b": 7}', '{"a": 4, "b": 7}'),
        ('{"*": 5}', '{"*": 4}'),
        ('{"*": 5}', '{"a": 4, "*": 5}'),
    ],
)
def test_an_ending_before_its_starting(starting: str, ending: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_window(starting, ending)
    assert f"ending {ending} lies before starting {starting}: " in str(caught.value)
    check_window(ending, starting)


@pytest.mark.parametrize(
    ("starting", "ending"),
    [
        ("0", ""),
        (DAY, DAY_S),  # the same time
        (DAY, ""),
        (DAY, "7|1|"),
        ("7|9|", "7|1|"),  # a log may hold them in this order
        (DAY, '{"a": 4}'),
        ('{"a": 5}', '{"b": 4}'),
        ('{"a": 5}', '{"a": 5}'),
    ],
)
def test_windows_that_may_hold_messages(starting: str, ending: str) -> None:
    check_window(starting, ending)


@pytest.mark.parametrize("name", ["starting", "ending"])
def test_a_wrong_form_is_told_with_its_option(name: str) -> None:
    for text, told in (
        ("soon", "which is no place in a log: give 0, "),
        ("[0:7|1|]", "which is a range"),
        ('{"a": "x"}', 'give {"instance": last transaction id'),
    ):
        with pytest.raises(ConfigurationError) as caught:
            check_window(**{"starting": "0", "ending": "", name: text})
        assert str(caught.value).startswith(f"{name} is {text!r}") and told in str(caught.value)
    with pytest.raises(ConfigurationError, match=f"^{name} is .* give 0, .* since 1970"):
        check_window(**{"starting": "0", "ending": "", name: '{"a": 1}'}, has_txids=False)
