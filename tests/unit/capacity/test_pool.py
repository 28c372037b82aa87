"""Who goes offline, and who is disconnected, by what its pool's clients hold."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.capacity.pool import (
    MARK_MS,
    MARKS_MAX,
    ClientHolding,
    DisconnectClient,
    GoOffline,
    Limits,
    Policy,
    Pool,
)

pytestmark = pytest.mark.covers(
    "Clients and protocol", "over the memory limit the largest goes offline"
)


def memory(size: int) -> ClientHolding:
    return ClientHolding(size, 0, size, size)


def disk(size: int, in_memory: int = 0) -> ClientHolding:
    return ClientHolding(in_memory, size, size, size)


def offline(pool: Pool, *clients: int) -> None:
    """Takes these offline, as a full memory does."""
    for client in clients:
        pool.holds(client, memory(pool.limits.memory_bytes_max + 1))
        assert pool.decide() == [GoOffline(client, pool.limits.memory_bytes_max + 1)]
        pool.holds(client, disk(1))


ALL = Limits(100, 1_000, 1.0)


def test_as_much_as_is_allowed_may_be_held() -> None:
    pool = Pool(ALL)
    assert not pool.holds(1, memory(60)) and not pool.holds(2, memory(40))
    assert pool.decide() == [] and pool.memory_bytes == 100


def test_other_limits_hold_at_once_and_for_everybody() -> None:
    pool = Pool(ALL)
    pool.holds(1, memory(90))
    pool.holds(2, memory(9), Policy(0.01, 5))
    pool.look(0)
    assert pool.limit(Limits(50, 20, 1.0), Policy(1.0, None)) == [GoOffline(1, 90)]
    assert pool.look(1_000) == [] and pool.decide() == [], "whatever is its own"
    pool.holds(1, disk(21))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "disk")
    (gone,) = pool.limit(ALL)
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (2, "share")


def test_over_the_memory_limit_the_largest_goes_offline_and_no_other() -> None:
    pool = Pool(ALL)
    for client, size in ((1, 30), (2, 45), (3, 20)):
        assert not pool.holds(client, memory(size))
    assert pool.holds(3, memory(26))
    assert pool.decide() == [GoOffline(2, 45)]
    assert pool.decide() == [] and pool.offline == [2]
    assert (pool.direct_bytes, pool.offline_memory_bytes) == (56, 45)
    # What it holds moves to the disk meanwhile: nobody else goes for that.
    assert not pool.holds(2, ClientHolding(45, 40, 45, 45))


def test_of_two_as_large_the_older_connection_goes() -> None:
    pool = Pool(ALL)
    pool.holds(7, memory(51))
    assert pool.holds(3, memory(51))
    assert pool.decide() == [GoOffline(3, 51)]


def test_as_many_go_offline_as_it_takes() -> None:
    pool = Pool(ALL)
    for client in (1, 2, 3):
        pool.holds(client, memory(60))
    assert pool.decide() == [GoOffline(1, 60), GoOffline(2, 60)]


def test_over_the_disk_limit_the_largest_on_disk_is_disconnected() -> None:
    pool = Pool(ALL)
    offline(pool, 1, 2)
    pool.holds(1, disk(400))
    assert not pool.holds(2, disk(600)) and pool.holds(1, disk(401))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (2, "disk")
    assert gone.why == (
        "1001 bytes wait on disk for clients, of them 600 for this one, the largest: at most 1000 "
        "may"
    )
    assert pool.disk_bytes == 401 and pool.clients == [1]


def test_without_a_disk_the_largest_is_disconnected() -> None:
    pool = Pool(Limits(100, 0, 1.0))
    pool.holds(1, memory(60))
    assert pool.holds(2, memory(41))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "memory")


def test_a_disk_that_is_slower_than_what_comes_costs_the_largest_its_connection() -> None:
    pool = Pool(ALL)
    offline(pool, 1, 2)
    pool.holds(3, memory(50))
    pool.holds(1, disk(80, 80))
    assert not pool.holds(2, disk(70, 70))
    assert pool.holds(2, disk(71, 71))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "memory")
    assert "on their way to the disk" in gone.why


def test_a_client_may_hold_its_share_of_the_memory_then_of_the_disk() -> None:
    pool = Pool(Limits(100, 1_000, 0.4))
    assert not pool.holds(1, memory(40)) and pool.holds(1, memory(41))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "share")
    assert gone.why == "41 bytes wait for it in memory: one client may hold 40"
    for client in (1, 2, 3):
        pool.holds(client, memory(35))
    assert pool.decide() == [GoOffline(1, 35)]
    assert not pool.holds(1, disk(400)) and pool.holds(1, disk(401))
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "share")
    assert "on disk" in gone.why


def test_who_is_back_online_counts_as_before() -> None:
    pool = Pool(ALL)
    offline(pool, 1)
    pool.back_online(1)
    assert pool.offline == []
    assert pool.holds(1, memory(101)) and pool.decide() == [GoOffline(1, 101)]


def test_there_is_room_for_one_who_stays_within_the_limits_online() -> None:
    pool = Pool(Limits(100, 1_000, 0.6))
    assert pool.has_room(1), "it holds nothing"
    pool.holds(1, ClientHolding(55))
    pool.holds(2, ClientHolding(50))
    assert pool.decide() == [GoOffline(1, 55)]
    assert not pool.has_room(1), "together it would be too much"
    pool.holds(1, ClientHolding(50))
    assert pool.has_room(1)
    pool.holds(2, ClientHolding(10))
    pool.holds(1, ClientHolding(61))
    assert not pool.has_room(1), "it would be more than its share"


def test_who_holds_nothing_costs_nothing() -> None:
    pool = Pool(ALL)
    assert not pool.holds(1, memory(0)) and pool.clients == []
    pool.holds(1, memory(5))
    pool.holds(1, ClientHolding(0, 0, 0, 900))
    assert pool.clients == [] and pool.memory_bytes == 0
    pool.left(1)
    pool.back_online(1)


def test_who_comes_by_another_transport_may_have_a_policy_of_his_own() -> None:
    pool = Pool(Limits(100, 1_000, 0.5))
    own = Policy(0.1, 1_000)
    assert not pool.holds(1, memory(11)) and pool.holds(2, memory(11), own)
    (gone,) = pool.decide()
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (2, "share")
    assert not pool.holds(3, memory(10), own)
    pool.look(0)
    (gone,) = pool.look(5_000)
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (3, "age")
    assert pool.clients == [1], "the memory is shared, the policy is not"


# -- ages --------------------------------------------------------------------------------------
AGED = Limits(1_000, 1_000, 1.0, 1_000)


def test_a_message_may_wait_for_so_long() -> None:
    pool = Pool(AGED)
    pool.holds(1, ClientHolding(10, 0, 10, 10))
    assert pool.look(0) == [] and pool.look(1_000) == [] and pool.age_ms(1, 1_000) == 1_000
    (gone,) = pool.look(1_001)
    assert isinstance(gone, DisconnectClient) and (gone.client, gone.limit) == (1, "age")
    assert gone.why == "a message waits for it since 1001 ms: at most 1000 ms may one"
    assert pool.clients == []


def test_one_who_reads_on_behind_is_as_late_as_what_it_has_not_taken() -> None:
    pool = Pool(Limits(10**9, 10**9))
    for now_ms in range(0, 60_000, 100):
        # 10 bytes each 100 ms, and always what came in the last 500 ms unread.
        sent = (now_ms // 100 + 1) * 10
        pool.holds(1, ClientHolding(min(50, sent), 0, min(50, sent), sent))
        pool.look(now_ms)
        assert pool.age_ms(1, now_ms) <= 500
    assert pool.age_ms(1, 60_000) >= 400


def test_an_age_is_never_given_too_high_and_costs_little() -> None:
    pool = Pool(Limits(10**9, 10**9))
    sent: list[tuple[int, int]] = []
    for number in range(20_000):
        now_ms, taken = number * 10, max(0, number - 15_000) * 4
        sent.append((now_ms, number + 1))
        pool.holds(1, ClientHolding(0, 0, number + 1 - taken, number + 1))
        pool.look(now_ms)
        oldest_ms = sent[taken][0]
        assert pool.age_ms(1, now_ms) <= now_ms - oldest_ms
        slack = max(MARK_MS, (now_ms + 1) / (MARKS_MAX / 4))
        assert pool.age_ms(1, now_ms) >= now_ms - oldest_ms - 2 * slack
    assert len(pool._clients[1].marks) <= MARKS_MAX


def test_what_was_forgotten_makes_nobody_old() -> None:
    pool = Pool(AGED)
    pool.holds(1, ClientHolding(900, 0, 900, 900))
    pool.look(0)
    pool.holds(1, ClientHolding(10, 0, 10, 10))  # It unsubscribed what waited behind its query.
    pool.look(500)
    assert pool.look(1_400) == []


# -- against a model that counts anew each time ---------------------------------------------------
class Naive:
    """The same rules, in the words of the documents."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held: dict[int, ClientHolding] = {}
        self.offline: set[int] = set()

    def over(self) -> list[tuple[str, int]]:
        """(what is to happen, to whom) next; empty: no limit is passed."""
        limits = self.limits
        for client, each in sorted(self.held.items()):
            is_offline = client in self.offline
            holds = each.disk_bytes if is_offline else each.memory_bytes
            most = limits.disk_bytes_max if is_offline else limits.memory_bytes_max
            if limits.client_share < 1 and holds > int(most * limits.client_share):
                return [("share", client)]
        for passed, members, size in (
            ("offline", self.held.keys() - self.offline, lambda each: self.held[each].memory_bytes),
            ("memory", self.held.keys(), lambda each: self.held[each].memory_bytes),
            ("disk", self.held.keys(), lambda each: self.held[each].disk_bytes),
        ):
            most = limits.disk_bytes_max if passed == "disk" else limits.memory_bytes_max
            if passed == "memory":
                most *= 2
            if sum(map(size, members)) > most:
                members = self.offline if passed == "memory" else members
                largest = max(map(size, members))
                client = min(each for each in members if size(each) == largest)
                return [(passed, client)]
        return []


STEPS = st.lists(
    st.tuples(
        st.integers(1, 6), st.integers(0, 80), st.integers(0, 300), st.sampled_from("hhhhhbl")
    ),
    max_size=60,
)


def differs(pool_class: type[Pool], steps: Any, share: float) -> bool:
    """Whether such a pool decides otherwise than the model."""
    limits = Limits(100, 500, share)
    pool, naive = pool_class(limits), Naive(limits)
    for client, in_memory, on_disk, step in steps:
        if step == "l":
            pool.left(client)
            naive.held.pop(client, None)
            naive.offline.discard(client)
        elif step == "b":
            pool.back_online(client)
            naive.offline.discard(client)
            if client in naive.held:
                in_memory = naive.held[client].memory_bytes
                naive.held[client] = ClientHolding(in_memory, 0, in_memory, in_memory)
                pool.holds(client, naive.held[client])
                if not in_memory:
                    naive.held.pop(client)
        else:
            on_disk = on_disk if client in naive.offline else 0
            unsent = in_memory + on_disk
            holding = ClientHolding(in_memory, on_disk, unsent, unsent)
            is_over = pool.holds(client, holding)
            if unsent or client in naive.offline:
                naive.held[client] = holding
            else:
                naive.held.pop(client, None)
            if is_over != bool(naive.over()):
                return True
        try:
            decided = pool.decide()
        except ValueError:  # There is nobody left who could go.
            return True
        for each in decided:
            expected = naive.over()
            if isinstance(each, GoOffline):
                if expected != [("offline", each.client)]:
                    return True
                naive.offline.add(each.client)
            else:
                if expected != [(each.limit, each.client)]:
                    return True
                del naive.held[each.client]
                naive.offline.discard(each.client)
        if naive.over() or sorted(pool.clients) != sorted(naive.held):
            return True
        if pool.memory_bytes != sum(each.memory_bytes for each in naive.held.values()):
            return True
    return False


@given(STEPS, st.sampled_from([1.0, 0.5, 0.3]))
def test_it_decides_as_one_who_counts_anew_each_time(steps: Any, share: float) -> None:
    assert not differs(Pool, steps, share)


# -- planted mistakes -----------------------------------------------------------------------------
class TakesTheSmallest(Pool):
    def _largest_in_memory(self, *, is_offline: bool) -> int:
        return min(
            (each for each, held in self._clients.items() if held.is_offline == is_offline),
            key=lambda each: (self._clients[each].holding.memory_bytes, -each),
        )


class ForgetsWhoCameBack(Pool):
    def back_online(self, client: int) -> None:
        pass


class CountsWhoLeft(Pool):
    def left(self, client: int) -> None:
        self._clients.pop(client, None)


class SharesTheMemoryAlways(Pool):
    def _of_share(self, held: Any) -> tuple[int | None, int, str]:
        most = int(self.limits.memory_bytes_max * held.policy.client_share)
        return most, held.holding.memory_bytes, ""


class NeverGoesOffline(Pool):
    def decide(self) -> Any:
        return [each for each in super().decide() if not isinstance(each, GoOffline)]


@pytest.mark.parametrize(
    "wrong",
    [
        TakesTheSmallest,
        ForgetsWhoCameBack,
        CountsWhoLeft,
        SharesTheMemoryAlways,
        NeverGoesOffline,
    ],
)
def test_a_planted_mistake_is_seen(wrong: type[Pool]) -> None:
    draw = random.Random(1)
    assert any(
        differs(
            wrong,
            [
                (draw.randint(1, 6), draw.randint(0, 80), draw.randint(0, 300), draw.choice("hhbl"))
                for _ in range(60)
            ],
            share,
        )
        for _ in range(30)
        for share in (1.0, 0.5)
    )
