"""services/messages/conflation_terms.py: the options of conflated subscriptions."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.conflation_terms import ConflationTerms, conflation_terms

pytestmark = pytest.mark.covers("Views", "conflation: a key")


@pytest.mark.parametrize(
    ("conflation", "key", "found"),
    [
        ("", (), None),
        ("none", (), None),
        ("auto", (), ConflationTerms(0)),
        ("AUTO", ("/a", "/b/c"), ConflationTerms(0, ("/a", "/b/c"))),
        ("10ms", (), ConflationTerms(10_000)),
        ("1.5s", ("/a",), ConflationTerms(1_500_000, ("/a",))),
        ("1d", (), ConflationTerms(86_400_000_000)),
    ],
)
def test_terms(conflation: str, key: tuple[str, ...], found: ConflationTerms | None) -> None:
    assert conflation_terms(conflation, key) == found


@pytest.mark.parametrize(
    ("conflation", "key", "says"),
    [
        ("", ("/a",), "conflation_key goes with conflation"),
        ("none", ("/a",), "conflation_key goes with conflation"),
        ("9ms", (), "between 10ms and 1d"),
        ("2d", (), "between 10ms and 1d"),
        ("5", (), "without a unit"),
        ("soon", (), "or auto, or none"),
        ("1s", ("a",), "no field"),
        ("1s", ("/",), "no field"),
        ("1s", ("/a",) * 33, "33 fields"),
    ],
)
def test_refused_terms(conflation: str, key: tuple[str, ...], says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says) as caught:
        conflation_terms(conflation, key)
    assert caught.value.reason == "bad_command"


def test_their_text_is_what_a_client_writes() -> None:
    assert ConflationTerms(1_500_000, ("/a", "/b")).text == (
        "conflation=1500ms,conflation_key=[/a,/b]"
    )
    assert ConflationTerms(0).text == "conflation=auto"
