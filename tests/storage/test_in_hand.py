"""The note of what an instance has in hand (storage/in_hand.py)."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from raylay.services.messages.suspects import Suspect
from raylay.storage.in_hand import PREFIX, SUSPECTS_MAX, InHand


def die(data: Path, shared: Path) -> None:
    InHand(data, shared).set(7, 3, 9, 1)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def died_with(data: Path, shared: Path, *said: tuple[int, int, int, int]) -> InHand:
    """A life in which these were in hand at last, and the next one."""
    note = InHand(data, shared)
    for each in said:
        note.set(*each)
    return InHand(data, shared)


def test_what_a_killed_process_had_in_hand_is_known_to_the_next(data: Path, tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(data, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    note = InHand(data, tmp_path)
    assert note.left == (Suspect(7, 3, 9, 1),)
    assert note.just_left == Suspect(7, 3, 9, 1)
    assert InHand(data, tmp_path).left == note.left, "over another life in which nothing ended"
    assert InHand(data, tmp_path).just_left is None


def test_what_was_done_is_no_suspect(data: Path, tmp_path: Path) -> None:
    note = InHand(data, tmp_path)
    note.set(7, 3, 9, 1)
    note.clear()
    assert InHand(data, tmp_path).left == ()


def test_the_same_messages_are_kept_once_with_all_their_deaths(data: Path, tmp_path: Path) -> None:
    note = died_with(data, tmp_path, (7, 3, 3, 1))
    note.set(7, 3, 3, 2)
    note = InHand(data, tmp_path)
    assert note.left == (Suspect(7, 3, 3, 2),)
    note.set(7, 3, 3, 1)
    assert InHand(data, tmp_path).left == (Suspect(7, 3, 3, 2),)


def test_the_oldest_suspects_make_room(data: Path, tmp_path: Path) -> None:
    for each in range(1, SUSPECTS_MAX + 4):
        note = died_with(data, tmp_path, (7, each, each, 1))
    firsts = [each.first for each in note.left]
    assert firsts == list(range(SUSPECTS_MAX + 3, 3, -1))


def test_a_note_that_says_nothing_goes_and_one_that_does_stays(data: Path, tmp_path: Path) -> None:
    note = InHand(data, tmp_path)
    assert note.path.exists()
    note.close()
    assert not note.path.exists()
    note = died_with(data, tmp_path, (7, 3, 9, 1))
    note.close()
    assert note.path.exists()


def test_the_note_of_a_directory_that_is_gone_is_removed(data: Path, tmp_path: Path) -> None:
    note = died_with(data, tmp_path, (7, 3, 9, 1))
    other = tmp_path / "other"
    other.mkdir()
    InHand(other, tmp_path)
    assert note.path.exists()
    shutil.rmtree(data)
    InHand(other, tmp_path)
    assert not note.path.exists()


def test_nonsense_in_a_note_is_nothing(data: Path, tmp_path: Path) -> None:
    note = InHand(data, tmp_path)
    note.path.write_bytes(os.urandom(100))
    assert InHand(data, tmp_path).left == ()


def test_no_link_is_followed_and_no_shared_memory_is_said(data: Path, tmp_path: Path) -> None:
    note = InHand(data, tmp_path)
    note.close()
    note.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        InHand(data, tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(FileNotFoundError):
        InHand(data, tmp_path / "none")
    assert note.path.name.startswith(PREFIX)


def test_what_others_put_beside_it_keeps_no_instance_from_its_start(
    data: Path, tmp_path: Path
) -> None:
    """Everybody may write to the directory: a pipe was waited for, for ever."""
    own = f"{PREFIX}{os.getuid()}-"
    os.mkfifo(tmp_path / f"{own}pipe")
    (tmp_path / f"{own}circle").symlink_to(tmp_path / f"{own}circle")
    (tmp_path / f"{own}directory").mkdir()
    with (tmp_path / f"{own}large").open("wb") as file:
        file.truncate(1 << 36)
    made: list[InHand] = []
    thread = threading.Thread(target=lambda: made.append(InHand(data, tmp_path)), daemon=True)
    thread.start()
    thread.join(60)
    assert made and made[0].left == ()
    path = made[0].path
    made[0].close()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no file"):
        InHand(data, tmp_path)
