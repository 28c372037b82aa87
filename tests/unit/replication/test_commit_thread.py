"""Who makes the next commit: the loop at the end of its turn, or the writer thread."""

from __future__ import annotations

from raylay.services.replication.commit_thread import (
    SLOW_COMMIT_NS,
    STAGED_BYTES_MAX,
    CommitThread,
    CommitThreadPolicy,
)


def chosen(
    place: CommitThreadPolicy, *, staged_bytes: int = 100, idle: bool = True, pending: bool = False
) -> CommitThread:
    place.staged(staged_bytes)
    return place.choose(thread_idle=idle, pending=pending)


def test_a_single_message_is_committed_at_the_end_of_the_turn() -> None:
    assert chosen(CommitThreadPolicy()) is CommitThread.HERE


def test_what_somebody_waits_for_already_leaves_the_next_to_the_thread() -> None:
    place = CommitThreadPolicy()
    assert chosen(place, pending=True) is CommitThread.THREAD
    assert chosen(place) is CommitThread.HERE


def test_nothing_overtakes_what_the_thread_has() -> None:
    assert chosen(CommitThreadPolicy(), idle=False) is CommitThread.THREAD


def test_much_is_left_to_the_thread_turn_by_turn() -> None:
    place = CommitThreadPolicy()
    place.staged(STAGED_BYTES_MAX)
    assert chosen(place, staged_bytes=1) is CommitThread.THREAD
    assert chosen(place, staged_bytes=STAGED_BYTES_MAX) is CommitThread.HERE, "of this turn alone"


def test_a_slow_disk_is_left_to_the_thread_until_it_is_fast_again() -> None:
    place = CommitThreadPolicy()
    place.took(4 * SLOW_COMMIT_NS)
    assert chosen(place) is CommitThread.HERE, "one slow commit is no slow disk"
    for _ in range(8):
        place.took(4 * SLOW_COMMIT_NS)
    assert chosen(place) is CommitThread.THREAD
    for _ in range(32):
        place.took(SLOW_COMMIT_NS // 10)
    assert chosen(place) is CommitThread.HERE


def test_with_no_time_to_spare_all_is_left_to_the_thread() -> None:
    assert chosen(CommitThreadPolicy(slow_commit_ns=0)) is CommitThread.THREAD
