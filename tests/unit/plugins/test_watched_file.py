"""services/plugins/watched_file.py: a file that is read again when it has changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.plugins.watched_file import WatchedFile

pytestmark = pytest.mark.covers("Configuration", "a file of passwords or permissions that is gone")


class Module:
    """Takes texts, but not such as begin with `bad`."""

    def __init__(self, path: Path) -> None:
        self.given: list[str] = []
        self.file = WatchedFile(str(path), "users", "here", self._take, "the last ones hold")

    def _take(self, text: str) -> None:
        self.given.append(text)
        if text.startswith("bad"):
            raise ConfigurationError(f"here: {text}")

    def look(self) -> str:
        """What is wrong."""
        try:
            asyncio.run(self.file.look())
        except ConfigurationError as error:
            assert self.file.problem == str(error)
        else:
            assert not self.file.problem
        return self.file.problem


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    found.write_text("one")
    return found


def test_it_is_read_when_it_has_changed(path: Path) -> None:
    module = Module(path)
    for _ in range(3):
        assert not module.look()
    path.write_text("another")
    assert not module.look() and module.given == ["one", "another"]


def test_another_file_in_its_place_is_read_whatever_its_date_and_size(path: Path) -> None:
    module = Module(path)
    assert not module.look()
    before = path.stat()
    other = path.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert not module.look() and module.given == ["one", "two"]


def test_a_mistake_is_told_each_time_and_read_once(path: Path) -> None:
    module = Module(path)
    path.write_text("bad text")
    assert [module.look() for _ in range(3)] == ["here: bad text"] * 3
    assert module.given == ["bad text"]
    path.write_text("good")
    assert not module.look() and module.given == ["bad text", "good"]


def test_one_that_is_gone_and_comes_back_as_it_was_is_no_problem(path: Path) -> None:
    module = Module(path)
    assert not module.look()
    aside = path.rename(path.with_name("aside"))
    assert module.look() == f"here: the file of users {path} cannot be read: " + (
        "No such file or directory"
    )
    aside.rename(path)
    assert not module.look() and module.given == ["one"]


def test_one_that_is_no_text_or_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module(path)
    path.write_bytes(b"\xff")
    assert "it is no text in UTF-8" in module.look()
    monkeypatch.setattr("raylay.services.plugins.watched_file.FILE_BYTES_MAX", 3)
    path.write_text("four")
    assert "has 4 bytes: at most 3 are read" in module.look()
    assert not module.given
