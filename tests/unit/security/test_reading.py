"""services/security/reading.py: what of a wish is performed."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.services.security.reading import ReadRequest, RestrictedRead, readable, reading

pytestmark = pytest.mark.covers("Configuration", "subscriptions and queries")


def permissions(**entry: Any) -> Permissions:
    return read_permissions({"topic": [{"topic": "orders", **entry}]}, "here")


def refused(found: Permissions, wish: ReadRequest) -> str:
    with pytest.raises(RemoteProtocolError) as told:
        reading(found, "bob", wish)
    assert told.value.reason == "not_entitled"
    return str(told.value)


def test_what_is_allowed_is_performed_as_it_was_asked() -> None:
    wish = ReadRequest("orders", "/a = 1", "-/b", "/c")
    assert reading(permissions(read=True), "bob", wish) == RestrictedRead("/a = 1", "-/b")


def test_what_is_not_is_refused() -> None:
    assert refused(permissions(write=True), ReadRequest("orders")) == "bob may not read 'orders'"
    assert "may not read" in refused(permissions(read=True), ReadRequest("orders2"))
    with pytest.raises(RemoteProtocolError, match="this client may not"):
        reading(permissions(), "", ReadRequest("orders"))


def test_a_filter_is_restricted() -> None:
    found = permissions(read="/desk = 'fx'")
    wish = ReadRequest("orders", "/a = 1 OR /b = 2", "-/b", may_select=False)
    assert reading(found, "bob", wish) == RestrictedRead(
        "(/desk = 'fx') AND (/a = 1 OR /b = 2)", "-/b"
    )
    assert reading(found, "bob", ReadRequest("orders")) == RestrictedRead("/desk = 'fx'", "")


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": "/pay > 1"},
        {"select": "+/pay"},
        {"order_by": "/pay"},
        {"conflation_key": ("/pay",)},
    ],
)
def test_nothing_is_asked_about_fields_that_are_kept_back(asked: dict[str, Any]) -> None:
    found = permissions(read="/a = 1", select="-/pay")
    assert reading(found, "bob", ReadRequest("orders")) == RestrictedRead("/a = 1", "-/pay")
    assert "leave out filter, select, order_by" in refused(found, ReadRequest("orders", **asked))
    assert "some fields" in refused(found, ReadRequest("orders", may_select=False))


def test_an_expression_meets_what_may_be_read_whole() -> None:
    assert readable(permissions(read=True), b"orders")
    for entry in ({"read": "/a = 1"}, {"read": True, "select": "-/b"}, {"write": True}):
        assert not readable(permissions(**entry), b"orders")
