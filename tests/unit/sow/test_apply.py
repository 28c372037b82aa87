"""What a record of the journal does to a topic, whoever folds it."""

from __future__ import annotations

import msgpack
from support.sow_given import record

from raylay.services.messages.records import EXPIRATION_S_MAX
from raylay.services.sow import apply
from raylay.services.sow.apply import deleted_keys
from raylay.services.sow.state import NEVER, SowRules, SowState


def test_a_deletion_as_it_is_journaled() -> None:
    assert deleted_keys(b"\x81\xa4keys\x92\xc4\x01a\xc4\x01b") == [b"a", b"b"]
    for wrong in (b"", b"\x80", b"\x90", b"\x81\xa4keys\x01", b"\x81\xa4keys\x91\x01", b"\xc1"):
        assert deleted_keys(wrong) is None
    assert deleted_keys(msgpack.packb({"keys": [b"k" * 255]})) == [b"k" * 255]
    for key in (b"", b"k" * 256):
        assert deleted_keys(msgpack.packb({"keys": [b"a", key]})) is None


def test_a_message_that_says_nothing_lives_as_the_topic_says() -> None:
    state = SowState(SowRules(expires=True, lifetime_us=5_000_000))
    for said, expires_us in ((0, 5_000_700), (EXPIRATION_S_MAX, NEVER), (2, 2_000_700)):
        made = record(said + 1, at_us=700, expiration_s=said)
        change = apply.apply_put(state, made, b"%d" % said, 1, 900, b"")
        assert change is not None and change.current is not None
        assert change.current.expires_us == expires_us


def test_a_deletion_says_what_was_there() -> None:
    state = SowState(SowRules())
    apply.apply_put(state, record(1), b"a", 1, 900, b"")
    found = apply.apply_delete(state, record(2), [b"a", b"b"], 2, 950)
    assert [each.key for each in found] == [b"a"]
    assert state.get(b"a") is None
    assert apply.apply_put(state, record(1), b"b", 3, 990, b"") is None, "it comes late"
