"""services/security/reading.py: what of a wish is performed."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.services.security.reading import Restricted, Wish, readable, reading


def permissions(**entry: Any) -> Permissions:
    return read_permissions({"topic": [{"topic": "orders", **entry}]}, "here")


def refused(found: Permissions, wish: Wish) -> str:
    with pytest.raises(RemoteProtocolError) as told:
        reading(found, "bob", wish)
    assert told.value.reason == "not_entitled"
    return str(told.value)


def test_what_is_allowed_is_performed_as_it_was_asked() -> None:
    wish = Wish("orders", "/a = 1", "-/b", "/c")
    assert reading(permissions(read=True), "bob", wish) == Restricted("/a = 1", "-/b")


def test_what_is_not_is_refused() -> None:
    assert refused(permissions(write=True), Wish("orders")) == "bob may not read 'orders'"
    assert "may not read" in refused(permissions(read=True), Wish("orders2"))
    with pytest.raises(RemoteProtocolError, match="this client may not"):
        reading(permissions(), "", Wish("orders"))


def test_a_filter_is_restricted() -> None:
    found = permissions(read="/desk = 'fx'")
    wish = Wish("orders", "/a = 1 OR /b = 2", "-/b", may_select=False)
    assert reading(found, "bob", wish) == Restricted("(/desk = 'fx') AND (/a = 1 OR /b = 2)", "-/b")
    assert reading(found, "bob", Wish("orders")) == Restricted("/desk = 'fx'", "")


@pytest.mark.parametrize(
    "asked", [{"filter": "/pay > 1"}, {"select": "+/pay"}, {"order_by": "/pay"}]
)
def test_nothing_is_asked_about_fields_that_are_kept_back(asked: dict[str, str]) -> None:
    found = permissions(read="/a = 1", select="-/pay")
    assert reading(found, "bob", Wish("orders")) == Restricted("/a = 1", "-/pay")
    assert "leave out filter, select and order_by" in refused(found, Wish("orders", **asked))
    assert "some fields" in refused(found, Wish("orders", may_select=False))


def test_an_expression_meets_what_may_be_read_whole() -> None:
    assert readable(permissions(read=True), b"orders")
    for entry in ({"read": "/a = 1"}, {"read": True, "select": "-/b"}, {"write": True}):
        assert not readable(permissions(**entry), b"orders")
