"""services/subscriptions/follow_terms.py: the kinds of subscriptions that follow records."""

from __future__ import annotations

import pytest

from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.subscriptions.follow_terms import FollowKind, FollowTerms, PageTerms

pytestmark = pytest.mark.covers("Views", "conflation: a key")


@pytest.mark.parametrize(
    ("terms", "kind", "text"),
    [
        (FollowTerms(), FollowKind.RECORDS, ""),
        (
            FollowTerms("-/,+/a", True, True, True, True),
            FollowKind.RECORDS,
            "oof,delta,no_empties,no_sowkey,select=[-/,+/a]",
        ),
        (
            FollowTerms(conflation=ConflationTerms(1_000_000)),
            FollowKind.CONFLATED,
            "conflation=1000ms",
        ),
        (FollowTerms(page=PageTerms(100, 50)), FollowKind.PAGES, "top_n=50,skip_n=100"),
    ],
)
def test_kinds_and_texts(terms: FollowTerms, kind: FollowKind, text: str) -> None:
    assert (terms.kind, terms.text) == (kind, text)
