"""Content filters of destinations in the language of docs/filters.md."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Record, RecordBuilder, Run, decode_record, run_of, scan
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.registry import message_type
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.link.content_language import ExpressionLanguage
from raylay.services.replication.link.routing import DestinationRoute, Router

pytestmark = pytest.mark.covers(
    "Replication", "a content filter lets some records of a run through"
)


class Types(dict[str, MessageType]):
    """All types, and how often one was asked for."""

    asked = 0

    def __missing__(self, name: str) -> MessageType:
        self.asked += 1
        return message_type(name)


def record(body: bytes, message_type: str = "json", topic: str = "orders") -> Record:
    return decode_record(RecordBuilder(0x11, topic, message_type).build(7, body, 0))


def run(*bodies: bytes) -> Run:
    builder = RecordBuilder(0x11, "orders", "json")
    payload = b"".join(builder.build(number, body, 0) for number, body in enumerate(bodies, 1))
    made = run_of(scan(payload)[0], payload)
    made.first_txid = 1
    return made


@pytest.mark.parametrize(
    ("text", "body", "passes"),
    [
        ("/region = 'EU'", b'{"region": "EU"}', True),
        ("/region = 'EU'", b'{"region": "US"}', False),
        ("/region = 'EU'", b"{}", False),
        ("NOT /region = 'EU'", b"no json", False),
        ("/region IS NULL", b"[1]", False),
        ("TOPIC_NAME() = 'orders' AND MESSAGE_SIZE() = 2", b"{}", True),
        ("BOOKMARK() = '17|7|'", b"{}", True),
        ("CORRELATION_ID() IS NULL", b"{}", True),
    ],
)
def test_a_record_passes_by_what_is_in_it(text: str, body: bytes, passes: bool) -> None:
    assert ExpressionLanguage(Types()).compiled(text, "Filter").passes(record(body)) is passes


def test_each_message_is_read_by_its_own_type() -> None:
    found = ExpressionLanguage(Types()).compiled("/55 = 'IBM'", "Filter")
    assert found.passes(record(b"55=IBM\x01", "fix"))
    assert found.passes(record(b'{"55": "IBM"}'))
    assert not found.passes(record(b"55=IBM\x01", "of nobody"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("/region = ", "Filter of Topic orders: '/region = ' is no filter: column 11: expected"),
        ("UNIX_TIMESTAMP() > 1", "something else each time"),
        ("CLIENT_NAME() = 'x'", "not known to a replication filter"),
        ("AMPS_INSTANCE_NAME() = 'x'", "not known to a replication filter"),
    ],
)
def test_what_cannot_be_used_says_where_and_what_to_do(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        DestinationFilters([TopicRule("orders", filter=text)], ExpressionLanguage(Types()))


def test_a_message_is_parsed_once_for_all_filters() -> None:
    types = Types()
    rules = [TopicRule("orders", filter=f"/region = '{region}'") for region in ("EU", "US", "UK")]
    contents = DestinationFilters(rules, ExpressionLanguage(types))
    routers = [Router(DestinationRoute("b", "g", True, (each,)), contents) for each in rules]
    made = run(b'{"region": "EU"}', b'{"region": "US"}', b'{"region": "EU"}', b"?")
    found = [router.part(made, 0xB, made.ranges()) for router in routers]
    assert found == [[(1, 1), (3, 3)], [(2, 2)], []]
    assert types.asked == 4
