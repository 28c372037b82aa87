"""A disk that loses what was not synced: what a process did to a directory, and what a power cut at
any instant of it leaves.

`record` runs a process with unsynced_disk.c loaded into it, so that also what LMDB writes from its
own C code is seen. `Disk` takes the entries of the record one by one and says at each what is sure
to be there:

    of a file, what was written before its last sync, and what a descriptor wrote that syncs each
    write (LMDB's meta pages);
    of a directory, the names that it had at its last sync: a sync of a file says nothing of its
    name, as POSIX has it.

The rest is there or not, each page of a write and each change of a name by itself.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("unsynced_disk.c")
CHILD_TIMEOUT_S = 120
PAGE_BYTES = 4096
SECTOR_BYTES = 512
_HEAD = struct.Struct("<cBHQQ")


class Entry(NamedTuple):
    """One entry of the record; unsynced_disk.c tells what they mean."""

    operation: str
    flags: int
    path: str
    offset: int
    data: bytes


@dataclass(slots=True)
class _File:
    synced: bytearray = field(default_factory=bytearray)
    since: list[Entry] = field(default_factory=list)
    """Writes and sizes since the last sync."""

    def content(self, rng: random.Random | None) -> bytearray:
        """What a power cut leaves; of what was not synced, nothing or a part by chance."""
        found = bytearray(self.synced)
        for entry in self.since:
            if entry.flags:
                _apply(found, entry)
            elif rng is not None:
                for page in _pages(entry):
                    if rng.random() < 0.5:
                        _apply(found, page)
        return found

    def sync(self) -> None:
        for entry in self.since:
            _apply(self.synced, entry)
        self.since.clear()


@dataclass(slots=True)
class _Directory:
    synced: dict[str, _File | _Directory] = field(default_factory=dict)
    now: dict[str, _File | _Directory] = field(default_factory=dict)
    since: list[dict[str, _File | _Directory | None]] = field(default_factory=list)
    """Changes of names since the last sync, a rename's two together; None: no such name."""

    def change(self, names: dict[str, _File | _Directory | None]) -> None:
        self.since.append(names)
        _rename(self.now, names)

    def names(self, rng: random.Random | None) -> dict[str, _File | _Directory]:
        """What a power cut leaves."""
        found = dict(self.synced)
        for names in self.since:
            if rng is not None and rng.random() < 0.5:
                _rename(found, names)
        return found

    def sync(self) -> None:
        self.synced = dict(self.now)
        self.since.clear()


def _rename(
    found: dict[str, _File | _Directory], names: dict[str, _File | _Directory | None]
) -> None:
    for name, node in names.items():
        if node is None:
            found.pop(name, None)
        else:
            found[name] = node


def _pages(entry: Entry) -> Iterator[Entry]:
    """A write, page by page: each may be lost by itself."""
    at = entry.offset
    end = at + len(entry.data)
    if entry.operation != "W":
        yield entry
        return
    while at < end:
        upto = min(end, at - at % PAGE_BYTES + PAGE_BYTES)
        yield entry._replace(offset=at, data=entry.data[at - entry.offset : upto - entry.offset])
        at = upto


def _apply(content: bytearray, entry: Entry) -> None:
    if entry.operation == "W":
        end = entry.offset + len(entry.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[entry.offset : end] = entry.data
    elif entry.offset < len(content):
        del content[entry.offset :]
    else:
        content.extend(bytes(entry.offset - len(content)))


class Disk:
    """The directory as it was after each entry taken. `told`: what the process has said by then."""

    def __init__(self) -> None:
        self.root = _Directory()
        self.told = b""
        self.syncs = 0

    def _find(self, path: str) -> tuple[_Directory, str]:
        *folders, name = path.split("/")
        found = self.root
        for folder in folders:
            child = found.now[folder]
            assert isinstance(child, _Directory)
            found = child
        return found, name

    def take(self, entry: Entry) -> None:
        """The process did this."""
        operation, path = entry.operation, entry.path
        if operation == "O":
            self.told += entry.data
            return
        if operation == "S" and not path:
            self.syncs += 1
            self.root.sync()
            return
        folder, name = self._find(path)
        if operation == "C":
            if entry.flags:
                self._file(folder, name).since.append(Entry("T", 0, path, 0, b""))
            else:
                folder.change({name: _File()})
        elif operation == "M":
            folder.change({name: _Directory()})
        elif operation == "U":
            folder.change({name: None})
        elif operation == "R":
            other, fresh = self._find(entry.data.decode())
            node = folder.now[name]
            if other is folder:
                folder.change({name: None, fresh: node})
            else:
                folder.change({name: None})
                other.change({fresh: node})
        elif operation == "S":
            self.syncs += 1
            folder.now[name].sync()
        else:
            assert operation in "WT", operation
            self._file(folder, name).since.append(entry)

    @staticmethod
    def _file(folder: _Directory, name: str) -> _File:
        found = folder.now[name]
        assert isinstance(found, _File)
        return found

    def sync_all(self) -> None:
        """Syncs everything, as an orderly end of the machine does."""
        folders = [self.root]
        while folders:
            folder = folders.pop()
            for node in folder.now.values():
                if isinstance(node, _Directory):
                    folders.append(node)
                else:
                    node.sync()
            folder.sync()

    def write(self, directory: Path, rng: random.Random | None = None) -> None:
        """Makes the directory as a power cut leaves it now. With `rng`, what was not synced is
        there by chance; else nothing of it is."""
        _write(self.root, directory, rng)


def _write(folder: _Directory, directory: Path, rng: random.Random | None) -> None:
    directory.mkdir()
    for name, node in folder.names(rng).items():
        if isinstance(node, _Directory):
            _write(node, directory / name, rng)
        else:
            (directory / name).write_bytes(node.content(rng))


def tear(directory: Path, entry: Entry, rng: random.Random) -> None:
    """A power cut in the middle of a write that is synced by itself: of each sector, which the disk
    writes whole, the new content or the old one."""
    path = directory / entry.path
    if entry.operation != "W" or not path.is_file():
        return
    content = bytearray(path.read_bytes())
    for at in range(0, len(entry.data), SECTOR_BYTES):
        if rng.random() < 0.5:
            sector = entry._replace(
                offset=entry.offset + at, data=entry.data[at : at + SECTOR_BYTES]
            )
            _apply(content, sector)
    path.write_bytes(content)


def compiled(directory: Path) -> Path:
    """The recorder as a shared object."""
    made = directory / "unsynced_disk.so"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl", "-lpthread"],
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    return made


def record(library: Path, root: Path, into: Path, script: Path, *arguments: str) -> list[Entry]:
    """Runs a Python script, which must end well; what it did below `root`, which is made."""
    root.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RAYLAY_DISK_ROOT": str(root),
        "RAYLAY_DISK_RECORD": str(into),
    }
    command = [sys.executable, str(script), str(root), *arguments]
    done = subprocess.run(
        command, env=environment, timeout=CHILD_TIMEOUT_S, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return list(entries(into.read_bytes()))


def entries(data: bytes) -> Iterator[Entry]:
    """The entries of a record."""
    at = 0
    while at < len(data):
        operation, flags, path_bytes, offset, data_bytes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        path = data[at : at + path_bytes].decode()
        at += path_bytes
        yield Entry(operation.decode(), flags, path, offset, data[at : at + data_bytes])
        at += data_bytes
