"""The Unix socket of an instance: where it is, and what is said where it cannot be made."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from raylay.services.errors import StorageError, StorageFull
from raylay.services.protocol.child.control import DIRECT_SUFFIX
from raylay.services.server.listening import listen_where_there_is_room, unix_socket_paths

pytestmark = pytest.mark.covers(
    "Journal", "a full disk ends no process where the file system copies"
)


class Direct:
    """Opens the socket for descriptors; on disks that are full it cannot."""

    def __init__(self, *full: Path, number: int = errno.ENOSPC) -> None:
        self._full = full
        self._number = number
        self.opened: list[str] = []

    def open(self, path: str) -> None:
        if Path(path).parent in self._full:
            raise OSError(self._number, os.strerror(self._number))
        Path(path).touch()
        self.opened.append(path)


def listened(paths: list[str], direct: Direct) -> str:
    """The path at which somebody can connect."""

    async def listen() -> str:
        path, server = await listen_where_there_is_room(paths, asyncio.Protocol, direct.open)
        assert os.stat(path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        server.close()
        return path

    return asyncio.run(listen())


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    return data, elsewhere


def test_on_a_full_disk_the_socket_is_in_the_directory_for_temporary_files(
    disks: tuple[Path, Path],
) -> None:
    data, elsewhere = disks
    paths = [str(data / "links.sock"), str(elsewhere / "links.sock")]
    direct = Direct(data)
    # What an earlier process left there is in nobody's way.
    Path(paths[1]).touch()
    assert listened(paths, direct) == paths[1]
    assert direct.opened == [paths[1] + DIRECT_SUFFIX]
    assert not list(data.iterdir()), "half of it takes room that others need"
    assert listened(paths, Direct()) == paths[0]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull)]
)
def test_where_both_are_full_the_error_names_the_path(
    disks: tuple[Path, Path], number: int, kind: type[StorageError]
) -> None:
    paths = [str(disk / "links.sock") for disk in disks]
    with pytest.raises(kind, match=f"{paths[1]} cannot be made: {os.strerror(number)}"):
        listened(paths, Direct(*disks, number=number))
    assert not [path for disk in disks for path in disk.iterdir()]


def test_another_error_is_not_passed_over(disks: tuple[Path, Path]) -> None:
    paths = [str(disk / "links.sock") for disk in disks]
    with pytest.raises(StorageError, match=f"{paths[0]} cannot be made") as raised:
        listened(paths, Direct(*disks, number=errno.EACCES))
    assert type(raised.value) is StorageError


def test_a_path_that_is_too_long_for_a_socket_is_elsewhere(tmp_path: Path) -> None:
    short, elsewhere = unix_socket_paths(Path("/d"))
    assert short == "/d/links.sock" and len(os.fsencode(elsewhere)) < 100
    (only,) = unix_socket_paths(Path("/d" * 60))
    assert only not in (short, elsewhere) and len(os.fsencode(only)) < 100
