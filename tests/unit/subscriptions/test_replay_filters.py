"""Content filters of replays: what passes, parsed once for all that stand at the same place."""

from __future__ import annotations

import pytest
from unit.subscriptions.test_filtered import Counting, run

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Run
from raylay.services.subscriptions.matching import FilterOwner
from raylay.services.subscriptions.replay_filters import KEPT_PIECES, ReplayFilters
from raylay.services.subscriptions.replay_group import PIECE_BYTES, PIECE_RECORDS, pieces

pytestmark = pytest.mark.covers("Filters by content", "a bookmark subscription with a filter")


def filters(types: Counting | None = None) -> ReplayFilters:
    return ReplayFilters(Counting() if types is None else types, BUILT_IN, "London-1", "London")


def sequences(made: ReplayFilters, text: str, each: Run) -> list[int]:
    found = made.made(text, FilterOwner()).passing(each)
    for before, begin, end, sequence in found:
        assert sequence == each.first_sequence + before
        assert int.from_bytes(each.payload[begin : begin + 4], "little") == end - begin
    return [place[3] for place in found]


def test_what_passes_is_found_and_what_cannot_be_read_does_not() -> None:
    each = run('{"n": 1}', '{"n": 2}', '{"n": 1', '{"n": 1}', first=5)
    assert sequences(filters(), "/n = 1", each) == [5, 8]
    assert sequences(filters(), "/n IS NOT NULL", each) == [5, 6, 8]
    assert sequences(filters(), "NOT /n = 1", each) == [6]
    each.message_type = b"unknown"
    assert sequences(filters(), "NOT /n = 1", each) == []


def test_a_filter_may_ask_what_is_around_the_message() -> None:
    each = run('{"n": 1}', '{"n": 22}')
    around = (
        "TOPIC_NAME() = 'orders' AND AMPS_INSTANCE_NAME() = 'London-1' AND MESSAGE_SIZE() = 9 "
        "AND AMPS_GROUP_NAME() = 'London' AND BOOKMARK() = '17|2|' AND UNIX_TIMESTAMP() = 7"
    )
    assert sequences(filters(), around, each) == [2]


def test_what_is_no_filter_is_refused_with_its_column() -> None:
    with pytest.raises(RemoteProtocolError, match="column 6") as refused:
        filters().made("/n = ", FilterOwner())
    assert refused.value.reason == "bad_filter"


def test_messages_are_parsed_once_for_all_who_are_there() -> None:
    types = Counting()
    made = filters(types)
    each = run('{"n": 1}', '{"n": 2}', txid=9)
    assert sequences(made, "/n = 1", each) == [1]
    assert sequences(made, "/n = 2", each) == [2]
    assert types.parsed == 2
    # What was only staged there came to nothing: another message has its transaction id.
    assert sequences(made, "/n = 2", run('{"n": 2}', '{"n": 1}', txid=9)) == [1]
    for txid in range(100, 100 + KEPT_PIECES):
        sequences(made, "/n = 1", run('{"n": 1}', txid=txid))
    parsed = types.parsed
    assert sequences(made, "/n = 1", each) == [1] and types.parsed == parsed + 2, "it was kept on"
    large = run(f'{{"n": "{"x" * PIECE_BYTES}"}}')
    assert sequences(made, "/n = 1", large) == sequences(made, "/n = 1", large) == []
    assert types.parsed == parsed + 4, "what is large is not kept"


def test_a_run_is_cut_into_pieces_of_a_turn_each() -> None:
    small = run(*['{"n": 1}'] * (PIECE_RECORDS * 2 + 1), txid=40, first=7)
    cut = list(pieces([small]))
    assert [each.count for each in cut] == [PIECE_RECORDS, PIECE_RECORDS, 1]
    assert [each.first_txid for each in cut] == [40, 40 + PIECE_RECORDS, 40 + 2 * PIECE_RECORDS]
    assert [each.first_sequence for each in cut] == [7, 7 + PIECE_RECORDS, 7 + 2 * PIECE_RECORDS]
    assert all(each.contiguous for each in cut) and cut[-1].last_sequence == small.last_sequence
    assert b"".join(each.payload for each in cut) == small.payload
    assert list(pieces(cut)) == cut
    large = run(*[f'"{"x" * (PIECE_BYTES // 2)}"'] * 3)
    assert [each.count for each in pieces([large])] == [1, 1, 1]
    holes = small.select([(7, 7), (9, small.last_sequence)])
    assert holes is not None
    assert [each.contiguous for each in pieces([holes])] == [False, True]
    assert next(pieces([holes])).ranges() == [(7, 7), (9, PIECE_RECORDS + 7)]


@pytest.mark.covers("Filters by content", "the filter of a subscription may ask whose it is")
def test_a_filter_may_ask_whose_it_is() -> None:
    made = filters().made("/desk = CLIENT_NAME()", FilterOwner("ann", "", ""))
    each = run('{"desk": "bob"}', '{"desk": "ann"}', '{"desk": null}')
    assert [place[3] for place in made.passing(each)] == [2]
    assert sequences(filters(), "/desk = CLIENT_NAME()", each) == []
