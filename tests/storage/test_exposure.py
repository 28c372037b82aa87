"""storage/exposure.py: who gets at what, by the modes of all that is on the way to it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from raylay.storage import exposure
from raylay.storage.exposure import PathStep, exposed, judge

pytestmark = pytest.mark.covers(
    "Configuration", "what is open all the same is said with the command"
)

OWN, ANOTHER = 1000, 27
ALL = "every user of this host"


def judged(*modes: int, is_file: bool = False, group: int = OWN) -> list[tuple[str, str, str]]:
    """Of `/a/b…`, whose modes these are, from `/a` on."""
    steps = [PathStep("/", stat.S_IFDIR | 0o755, 0)]
    for at, mode in enumerate(modes):
        kind = stat.S_IFREG if is_file and at == len(modes) - 1 else stat.S_IFDIR
        name = chr(ord("a") + at)
        steps.append(PathStep(f"{steps[-1].path.rstrip('/')}/{name}", kind | mode, group))
    return [(each.who, each.right, each.change) for each in judge(steps, OWN)]


def test_what_is_its_owners_alone_is_not_exposed() -> None:
    assert judged(0o755, 0o700) == judged(0o755, 0o600, is_file=True) == []
    assert judged(0o1777, 0o700) == [], "the sticky bit keeps /tmp in order"


def test_a_directory_that_others_enter() -> None:
    assert judged(0o755, 0o755) == [(ALL, "read", "chmod 700 /a/b")]
    assert judged(0o755, 0o777) == [(ALL, "change", "chmod 700 /a/b")]
    assert judged(0o755, 0o770) == [("a group", "change", "chmod 700 /a/b")]
    assert judged(0o755, 0o711) == [(ALL, "read", "chmod 700 /a/b")]


def test_a_file_that_others_read_or_write() -> None:
    assert judged(0o755, 0o644, is_file=True) == [(ALL, "read", "chmod 600 /a/b")]
    assert judged(0o755, 0o640, is_file=True) == [("a group", "read", "chmod 600 /a/b")]
    assert judged(0o755, 0o602, is_file=True) == [(ALL, "change", "chmod 600 /a/b")]


def test_what_is_closed_closes_what_is_below() -> None:
    assert judged(0o700, 0o777, 0o777) == []
    assert judged(0o750, 0o755) == [("a group", "read", "chmod 700 /a/b")]


def test_whoever_may_write_around_it_may_put_something_in_its_place() -> None:
    assert judged(0o777, 0o700) == [(ALL, "change", "chmod go-w /a")]
    assert judged(0o755, 0o777, 0o700) == [(ALL, "change", "chmod go-w /a/b")]
    assert judged(0o775, 0o700, group=ANOTHER) == [("a group", "change", "chmod go-w /a")]
    assert judged(0o775, 0o700) == [], "many users have a group of their own"


def test_a_path_on_this_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exposure.steps_to
    monkeypatch.setattr(
        exposure,
        "steps_to",
        lambda path: [each for each in whole(path) if each.path.startswith(str(tmp_path))],
    )
    tmp_path.chmod(0o755)
    data, link = tmp_path / "the data", tmp_path / "link"
    data.mkdir(0o700)
    link.symlink_to(data)
    assert exposed(data) == exposed(link) == []
    data.chmod(0o755)
    (found,) = exposed(link)
    assert (found.path, found.change) == (str(data), f"chmod 700 '{data}'")
    assert found.text == f"{ALL} may read {data}"
    assert exposed(tmp_path / "missing") == []
