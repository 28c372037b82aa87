"""services/messages/types/xml.py against hand-written bodies."""

from __future__ import annotations

from typing import Any

import pytest
from support.message_type_cases import check_deltas, check_fuzz, check_whatever_comes

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.xml import Xml

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

XML = Xml()
BODIES = [
    b'<order id="1"><sym>IBM</sym><px>1.5</px></order>',
    b'<order id="2" side="buy"><leg n="1"/><leg n="2">x</leg><desk><name>fx</name></desk></order>',
    "<order><sym>größer &amp; &lt;</sym><fx:leg>1</fx:leg><note/></order>".encode(),
    b'<order id="3">text<desk floor="3">more</desk></order>',
]
BILLION_LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE z [
<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;">]><z>&c;</z>"""


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (b"<a/>", {"a": ""}),
        (b"<a>x</a>", {"a": "x"}),
        (b"<a> </a>", {"a": " "}),
        (b"<?xml version='1.0' encoding='UTF-8'?>\n<a><!-- no -->x<?pi no?>y</a>\n", {"a": "xy"}),
        (b'<a b="1"/>', {"a": {"@b": "1"}}),
        (b'<a b="1">x</a>', {"a": {"@b": "1", "#text": "x"}}),
        (b"<a>\n  <b>1</b>\n  <c>2</c>\n</a>", {"a": {"b": "1", "c": "2"}}),
        (b"<a><b>1</b><c/><b>2</b><b>3</b></a>", {"a": {"b": ["1", "2", "3"], "c": ""}}),
        (b"<a>x<b/>y</a>", {"a": {"b": "", "#text": "xy"}}),
        (b"<n:a xmlns:n='u'><n:b>1</n:b></n:a>", {"n:a": {"@xmlns:n": "u", "n:b": "1"}}),
        (b"<a><![CDATA[<b> & c]]></a>", {"a": "<b> & c"}),
        (b"<a>&lt;&gt;&amp;&apos;&quot;&#65;&#x42;</a>", {"a": "<>&'\"AB"}),
        ("\ufeff<a>ä</a>".encode(), {"a": "ä"}),
        ("<a>ä</a>".encode("utf-16"), {"a": "ä"}),
    ],
)
def test_parse(body: bytes, tree: dict[str, Any]) -> None:
    assert XML.parse(body) == tree
    assert XML.parse(memoryview(b"xx" + body)[2:]) == tree


@pytest.mark.covers("Message types", "depth, claimed lengths")
@pytest.mark.parametrize(
    ("body", "offset", "why"),
    [
        (b"", 0, "no element found"),
        (b"<a>", 3, "no element found"),
        (b"<a></b>", 5, "mismatched tag"),
        (b"<a/><b/>", 4, "junk after document element"),
        (b"<a b='1' b='2'/>", 9, "duplicate attribute"),
        (b"<a>\xff</a>", 3, "not well-formed"),
        (b"<a>&nbsp;</a>", 3, "undefined entity"),
        (BILLION_LAUGHS, 21, "a DOCTYPE is not taken (leave it out)"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', 39, "a DOCTYPE is not taken"),
        (b'<?xml version="1.0" encoding="latin-1"?><a/>', 0, "expected UTF-8, got the encoding"),
        (b"<a>" * 65 + b"</a>" * 65, 192, "nested more than 64 deep"),
        (b"<a>" * 60_000, 192, "nested more than 64 deep"),
    ],
)
def test_what_is_no_xml_is_refused(body: bytes, offset: int, why: str) -> None:
    with pytest.raises(MessageTypeError) as caught:
        XML.parse(body)
    assert why in str(caught.value)
    assert caught.value.offset is not None and abs(caught.value.offset - offset) <= 20
    assert len(XML.parse(b"<a>" * 64 + b"</a>" * 64)) == 1


@pytest.mark.parametrize(
    ("tree", "body"),
    [
        ({"a": ""}, b"<a/>"),
        ({"a": None}, b"<a/>"),
        ({"a": "<&>\r\n"}, b"<a>&lt;&amp;&gt;&#13;\n</a>"),
        ({"a": {"@b": '"<&\t\n', "c": [1, True, 1.5, b"x"]}},
         b'<a b="&quot;&lt;&amp;&#9;&#10;"><c>1</c><c>true</c><c>1.5</c><c>x</c></a>'),
        ({"a": {"#text": "t", "b": "1"}}, b"<a>t<b>1</b></a>"),
        ({"a": {"b": []}}, b"<a></a>"),
    ],
)  # fmt: skip
def test_serialize(tree: dict[str, Any], body: bytes) -> None:
    assert XML.serialize(tree) == body


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({}, "expected one element"),
        ({"a": 1, "b": 2}, "expected one element"),
        ({"a": [1]}, "expected one element"),
        ({"1a": 1}, "cannot be the name"),
        ({"a": {"@b c": 1}}, "cannot be the name"),
        ({"a": {"": 1}}, "cannot be the name"),
        ({"a": "\0"}, "a character that XML does not have"),
        ({"a": "\udcff"}, "a character that XML does not have"),
        ({"a": [[1]]}, "expected one element"),
        ({"a": {"b": [[1]]}}, "expected a text"),
        ({"a": {"@b": {"c": 1}}}, "expected a text"),
    ],
)
def test_what_xml_cannot_say_is_refused(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageTypeError, match=why):
        XML.serialize(tree)


def test_what_is_too_deep_is_not_written() -> None:
    tree: dict[str, Any] = {"a": "x"}
    for _ in range(63):
        tree = {"a": tree}
    assert XML.parse(XML.serialize(tree)) == tree
    with pytest.raises(MessageTypeError, match="nested more than 64 deep"):
        XML.serialize({"a": tree})


def test_a_delta_is_merged_element_by_element() -> None:
    stored = b'<order id="1"><qty>100</qty><leg>1</leg><leg>2</leg></order>'
    delta = b'<order id="1"><qty>50</qty><leg>3</leg></order>'
    assert XML.merge(stored, delta) == delta
    assert XML.difference(stored, delta, [("order", "@id")]) == delta
    assert XML.difference(stored, stored) == b"<order/>"
    assert XML.merge(stored, b"<order/>") == stored
    assert XML.difference(b"<o><a>1</a><b>2</b></o>", b"<o><a>1</a></o>") == b"<o><b/></o>"


def test_elements_of_two_names_have_no_delta() -> None:
    for act in (XML.merge, XML.difference):
        with pytest.raises(MessageTypeError, match="two names: 'a' and 'b'"):
            act(b"<a/>", b"<b/>")


@pytest.mark.covers("Message types", "deltas: what is lacking stays")
def test_deltas_lead_where_they_should() -> None:
    # Text beside elements cannot be said to be gone.
    check_deltas(XML, BODIES[:3], "")


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(XML, BODIES)
    assert read > 30 and refused > 500


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(XML, BODIES) > 100
