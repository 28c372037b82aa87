"""services/admin/schema.py: the resource tree in RELAX NG compact syntax."""

from __future__ import annotations

import pytest

from raylay.services.admin.schema import schema_of
from raylay.services.admin.tree import Branch, Collection

TREE: Branch = {
    "name": "n",
    "empty": {},
    "clients": Collection("client", {"1": {"a": 1}, "2": {"b": 2, "tls": {"version": "1.3"}}}),
    "nobody": Collection("entry", {}),
}


@pytest.mark.covers("Administration", "the documented tree, as JSON with texts, as XML, as")
def test_each_element_may_be_absent_and_entries_have_what_any_of_them_has() -> None:
    assert (
        schema_of("amps", TREE)
        == """start =
  element amps {
    element name { text }? &
    element empty { empty }? &
    element clients {
      element client {
        attribute id { text } &
        element b { text }? &
        element tls {
          element version { text }?
        }? &
        element a { text }?
      }*
    }? &
    element nobody {
      element entry {
        attribute id { text }
      }*
    }?
  }
"""
    )
