"""Whose password is looked at next, who is refused, and what is remembered of it."""

from __future__ import annotations

from random import Random

import pytest

from raylay.services.security.logon_turns import (
    ADDRESS_BACK_OFF_S_MAX,
    ADDRESS_FAILURES_FREE,
    BACK_OFF_S,
    FORGOTTEN_S,
    USER_BACK_OFF_S_MAX,
    USER_FAILURES_FREE,
    LogonTurns,
    Turn,
    is_local,
    network_of,
)

pytestmark = pytest.mark.covers(
    "Configuration", "a flood of wrong logons keeps nobody out at other"
)

A, B = "10.0.0.1:1", "10.0.0.2:1"


class Logons:
    """The turns of numbered logons, with a clock."""

    def __init__(self, at_once: int = 1, waiting_max: int = 100, **more: int) -> None:
        self.turns = LogonTurns(at_once, waiting_max, **more)
        self.now_s, self._number = 0.0, 0

    def came(self, peer: str, user: str = "amy") -> tuple[int, list[int]]:
        """Its number, and who is refused by it."""
        self._number += 1
        refused = self.turns.came(self._number, peer, user)
        assert all("wait for their password" in each.refusal for each in refused)
        return self._number, [each.number for each in refused]

    def next(self) -> Turn | None:
        return self.turns.next(self.now_s)

    def all(self) -> list[int]:
        """Looks at one after the other, without a result."""
        found = []
        while (turn := self.next()) is not None:
            found.append(turn.number)
            self.turns.gone(turn.number, self.now_s)
        return found

    def looks(self, peer: str, user: str, fits: bool) -> str:
        """One logon alone. Why it was refused; empty: its password was looked at."""
        number, refused = self.came(peer, user)
        turn = self.next()
        assert not refused and turn is not None and turn.number == number
        self.turns.gone(number, self.now_s, None if turn.refusal else fits)
        return turn.refusal

    def fails(self, peer: str, user: str, times: int) -> None:
        for _ in range(times):
            assert self.looks(peer, user, False) == ""


def test_addresses_take_turns() -> None:
    logons = Logons()
    flood = [logons.came(A, f"u{number}")[0] for number in range(6)]
    right = [logons.came(B)[0] for _ in range(2)]
    assert logons.all() == [flood[0], right[0], flood[1], right[1], *flood[2:]]


def test_users_of_one_address_take_turns() -> None:
    logons = Logons()
    flood = [logons.came(A, "eve")[0] for _ in range(4)]
    right = logons.came(A, "amy")[0]
    assert logons.all() == [flood[0], right, *flood[1:]]


def test_so_many_are_looked_at_at_once() -> None:
    logons = Logons(at_once=2)
    first, second, third = (logons.came(A)[0] for _ in range(3))
    assert [logons.next(), logons.next(), logons.next()] == [Turn(first), Turn(second), None]
    logons.turns.gone(second, 0.0, True)
    assert logons.next() == Turn(third) and logons.next() is None


def test_who_has_most_gives_way() -> None:
    logons = Logons(waiting_max=4)
    flood = [logons.came(A, "eve")[0] for _ in range(3)]
    assert logons.came(A, "amy") == (4, [])
    assert logons.came(A, "eve") == (5, [5]), "its own newest"
    assert logons.came(A, "amy") == (6, [flood[-1]]), "of its address eve has most"
    assert logons.came(B) == (7, [flood[-2]])
    assert logons.came(B) == (8, [6])
    assert logons.came(B) == (9, [9]), "nobody gives way to who has as many"
    assert sorted(logons.all()) == [flood[0], 4, 7, 8]


def test_those_that_are_looked_at_give_way_to_nobody() -> None:
    logons = Logons(at_once=2, waiting_max=2)
    logons.came(A), logons.came(A)
    assert logons.next() and logons.next()
    assert logons.came(B) == (3, [3])


def test_who_left_has_no_turn() -> None:
    logons = Logons()
    numbers = [logons.came(A, user)[0] for user in ("a", "b", "b")]
    logons.turns.gone(numbers[0], 0.0)
    logons.turns.gone(numbers[1], 0.0)
    logons.turns.gone(numbers[1], 0.0)
    logons.turns.gone(99, 0.0, False)
    assert logons.all() == [numbers[2]] and not len(logons.turns)


# -- back-off ------------------------------------------------------------------------------------
def test_a_user_name_that_fails_waits_twice_as_long_each_time() -> None:
    logons = Logons()
    logons.fails(A, "amy", USER_FAILURES_FREE + 1)
    for wait_s in (BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S):
        logons.now_s += wait_s - 0.01
        assert "user name failed" in logons.looks(A, "amy", True)
        logons.now_s += 0.01
        assert logons.looks(A, "amy", False) == ""
    for _ in range(100):
        logons.now_s += USER_BACK_OFF_S_MAX
        assert logons.looks(A, "amy", False) == "", "that is the most"


def test_a_user_is_not_kept_out_at_another_address_nor_another_user_here() -> None:
    logons = Logons()
    logons.fails(A, "amy", USER_FAILURES_FREE + 1)
    assert logons.looks(A, "amy", True)
    assert not logons.looks(B, "amy", True) and not logons.looks(A, "bob", True)


def test_a_right_password_clears_the_failures() -> None:
    logons = Logons()
    for _ in range(3):
        logons.fails(A, "amy", USER_FAILURES_FREE)
        assert logons.looks(A, "amy", True) == ""
    assert logons.turns.remembered == 1, "that she was let in"


def test_failures_of_long_ago_do_not_count() -> None:
    logons = Logons()
    logons.fails(A, "amy", USER_FAILURES_FREE)
    logons.now_s = FORGOTTEN_S + 1
    logons.fails(A, "amy", USER_FAILURES_FREE)


def test_who_waits_as_long_as_he_must_between_two_attempts_is_not_forgotten() -> None:
    """Else whoever guesses would wait no longer than once."""
    logons = Logons()
    logons.fails(A, "amy", USER_FAILURES_FREE)
    for _ in range(10):
        logons.now_s += FORGOTTEN_S
        logons.fails(A, "amy", 1)
        assert "its passwords are not checked" in logons.looks(A, "amy", False)


def test_an_address_that_fails_by_many_names_waits() -> None:
    logons = Logons()
    assert logons.looks(A, "known", True) == ""
    for number in range(ADDRESS_FAILURES_FREE + 1):
        logons.fails(A, f"u{number}", 1)
    assert "logons failed at its address" in logons.looks(A, "another", False)
    assert logons.looks(A, "known", False) == "", "who was let in there before is not slowed"
    assert logons.looks(B, "another", True) == ""
    for number in range(100):
        logons.now_s += ADDRESS_BACK_OFF_S_MAX
        assert logons.looks(A, f"v{number}", False) == "", "that is the most"
    logons.now_s += ADDRESS_BACK_OFF_S_MAX
    assert logons.looks(A, "amy", True) == ""
    assert logons.looks(A, "bob", False) == "", "a right password clears them"


@pytest.mark.parametrize("peer", ["127.0.0.1:1", "::1:1", ""])
def test_this_host_is_not_slowed(peer: str) -> None:
    """Everybody behind a proxy comes from there, and calls that control it from no address: whoever
    says a name there would lock out all others who have it."""
    logons = Logons()
    for number in range(2 * ADDRESS_FAILURES_FREE):
        logons.fails(peer, f"u{number}", 1)
    logons.fails(peer, "amy", 10 * USER_FAILURES_FREE)
    assert logons.looks(peer, "amy", True) == "" and not logons.turns.remembered


def test_those_that_wait_already_are_refused_at_their_turn() -> None:
    """Nothing is computed for the rest of a flood."""
    logons = Logons(at_once=2, waiting_max=400)
    for number in range(300):
        logons.came(A, f"u{number}")
    looked_at = 0
    while (turn := logons.next()) is not None:
        looked_at += not turn.refusal
        if not turn.refusal:
            logons.turns.gone(turn.number, 0.0, False)
    assert looked_at == ADDRESS_FAILURES_FREE + 1 and not len(logons.turns)


def test_no_more_is_remembered_than_a_bound() -> None:
    logons = Logons(remembered_max=8)
    for number in range(50):
        logons.fails(f"10.1.0.{number}:1", "amy", 1)
        assert not logons.looks(f"10.2.0.{number}:1", "amy", True)
    assert logons.turns.remembered == 8


@pytest.mark.parametrize("seed", range(20))
def test_everybody_gets_an_answer_once(seed: int) -> None:
    random = Random(seed)
    logons = Logons(at_once=2, waiting_max=12, remembered_max=6)
    open_, running, answered = set(), set(), []
    for _ in range(600):
        logons.now_s += random.random()
        kind = random.randrange(3)
        if kind == 0:
            peer = f"{random.choice(('10.0.0.1', '10.0.0.2', '10.0.0.3', '::1'))}:5"
            number, refused = logons.came(peer, random.choice("abc"))
            open_.add(number)
            answered += refused
            open_.difference_update(refused)
        elif kind == 1 and (turn := logons.next()) is not None:
            answered.append(turn.number)
            open_.remove(turn.number)
            if not turn.refusal:
                running.add(turn.number)
        elif kind == 2 and running:
            fits = random.choice((True, False, False, None))
            logons.turns.gone(running.pop(), logons.now_s, fits)
        assert len(running) <= 2 and len(logons.turns) == len(open_) + len(running) <= 12
        assert logons.turns.remembered <= 6
    for number in running:
        logons.turns.gone(number, logons.now_s)
    while (turn := logons.next()) is not None:
        answered.append(turn.number)
        logons.turns.gone(turn.number, logons.now_s)
    assert len(set(answered)) == len(answered) and not len(logons.turns)


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("10.0.0.1:9007", "10.0.0.1"),
        ("::ffff:10.0.0.1:9007", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:9007", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:9007", "fe80::/64"),
        ("::1:9007", "::1"),
        ("carried:4", "carried"),
        ("", ""),
    ],
)
def test_what_is_one_address(peer: str, network: str) -> None:
    assert network_of(peer) == network


def test_what_is_this_host() -> None:
    assert all(is_local(each) for each in ("", "127.0.0.1", "127.9.9.9", "::1"))
    assert not any(is_local(each) for each in ("10.0.0.1", "2001:db8::/64", "carried"))


def test_who_failed_last_is_remembered_longest() -> None:
    logons = Logons(remembered_max=2)
    logons.fails(A, "amy", USER_FAILURES_FREE)
    logons.fails(B, "amy", 1)
    logons.fails(A, "amy", 1)
    logons.fails("10.0.0.3:1", "amy", 1)
    assert "user name failed" in logons.looks(A, "amy", True)


def test_a_right_password_clears_the_failures_of_its_address() -> None:
    logons = Logons()
    for round_ in range(3):
        for number in range(ADDRESS_FAILURES_FREE):
            logons.fails(A, f"u{round_}-{number}", 1)
        assert logons.looks(A, "amy", True) == ""


def test_what_was_not_looked_at_is_no_failure() -> None:
    logons = Logons()
    for _ in range(2 * ADDRESS_FAILURES_FREE):
        logons.came(A)
    logons.all()
    assert logons.looks(A, "amy", True) == ""


def test_who_was_let_in_here_waits_for_the_failures_of_the_own_name() -> None:
    logons = Logons()
    assert logons.looks(A, "amy", True) == ""
    logons.fails(A, "amy", USER_FAILURES_FREE + 1)
    assert "user name failed" in logons.looks(A, "amy", True)
