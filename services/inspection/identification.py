"""Identification of a file by a few of its bytes: nothing is mapped, locked, made or waited for.

A path of which the name says one kind and the contents another has a problem. Sockets, pipes and
devices are never opened: that could wait for ever, or do something.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sqlite3
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.inspection.file_kinds import WITHOUT_MARK, FileIdentity, kind_by_name
from raylay.services.inspection.gzip_reading import GZIP_MAGIC, unpacked
from raylay.services.inspection.journal_rows import time_text
from raylay.storage.compressed import _MAGIC as COMPRESSED_MAGIC
from raylay.storage.compressed import Container
from raylay.storage.files import holders_of, read_text
from raylay.storage.front import END_BYTES
from raylay.storage.front_entries import FILE_BYTES, MAGIC, MARK, scan
from raylay.storage.lmdb_pages import LmdbPages, starts_like_lmdb
from raylay.storage.lmdb_structure import MAGIC as LMDB_MAGIC
from raylay.storage.segment_index import _HEADER, _SEAL, HEADER_KEY, SEAL_KEY, checked
from raylay.storage.segments import META_PREFIX
from raylay.storage.state import VERSION_KEY
from raylay.storage.statistics import READ_ONLY, read_only_uri

HEAD_BYTES = 64 * 1024
JSON_BYTES_MAX = 16 * 1024 * 1024
LOOKS_MAX = 3
"""Number of times that a file is looked at which a process is writing meanwhile."""
NAMES_SHOWN = 20
DEPTH_MAX = 6
_SQLITE_MAGIC = b"SQLite format 3\0"
_LOG_LINE = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d)\s+\S")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)

Found = tuple[str, dict[str, object], str]
"""Kind, details and problem."""
NO_KIND: Found = ("unknown", {}, "")


def identify(path: Path) -> FileIdentity:
    """Identifies a path. Never raises for what it finds there."""
    word, note = kind_by_name(path.name)
    try:
        status = path.stat()
    except FileNotFoundError:
        return _of_link(path, word, note)
    except (OSError, ValueError) as error:
        return FileIdentity(str(path), "unreadable", {}, note, _text_of(error))
    for is_special, kind in _SPECIAL:
        if is_special(status.st_mode):
            return FileIdentity(str(path), kind, {}, note)
    if stat.S_ISDIR(status.st_mode):
        kind, details, problem = _of_directory(path)
        return FileIdentity(str(path), kind, details, note, problem)
    if status.st_size and path.parent.name == "offline" and path.name.endswith(".lmdb"):
        word = "offline_store"
    sizes = (status.st_size, status.st_blocks * 512)
    try:
        kind, details, problem = _of_file(path, word)
    except OSError as error:
        return FileIdentity(str(path), "unreadable", {}, note, _text_of(error), *sizes)
    if word and word != kind and kind not in ("unreadable", "empty") and not problem:
        problem = f"its name is that of another kind of file ({word})"
    return FileIdentity(str(path), kind, details, note, problem, *sizes)


def identify_all(path: Path) -> Iterator[FileIdentity]:
    """Identifies a path and, where it is a directory, what is in it. Follows no symbolic link to a
    directory."""
    yield from _identified(path, 0)


def _identified(path: Path, depth: int) -> Iterator[FileIdentity]:
    found = identify(path)
    yield found
    if not path.is_dir() or (depth and path.is_symlink()) or depth > DEPTH_MAX:
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return  # `identify` has said so.
    for name in names:
        yield from _identified(path / name, depth + 1)


def _of_link(path: Path, word: str, note: str) -> FileIdentity:
    """Identifies a path that leads nowhere: on a full disk a short text is kept as a symbolic link
    (storage/files.py)."""
    if not path.is_symlink():
        return FileIdentity(str(path), "missing", {}, note, "there is no such file")
    text = os.readlink(path)
    if word in ("archive_pointer", "removal_floor"):
        return FileIdentity(str(path), word, {"text": text}, note, "", len(os.fsencode(text)))
    problem = f"it is a symbolic link to {text}, which does not exist"
    return FileIdentity(str(path), "missing", {}, note, problem)


def _text_of(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, PermissionError):
        text += ": it belongs to another user, or its mode forbids it"
    return text


# -- directories ---------------------------------------------------------------------------------
def _of_directory(path: Path) -> Found:
    try:
        names = set(os.listdir(path))
    except OSError as error:
        return "directory", {}, _text_of(error)
    details: dict[str, object] = {"files": len(names)}
    if "instance.json" in names or "state.lmdb" in names:
        values = _json_of(path / "instance.json") if "instance.json" in names else {}
        details |= _some(values, "name", "group", "generation")
        details["running_pid"] = _holder(path / "journal" / "lock")
        return "data_directory", details, ""
    if "backup.json" in names:
        found = _some(_json_of(path / "backup.json"), "fabric", "instance", "time", "messages")
        return "backup_directory", details | found, ""
    if "fabric.json" in names:
        return "fabric_directory", details | _some(_json_of(path / "fabric.json"), "name"), ""
    if "archive-id.json" in names:
        return "archive_directory", details, ""
    segments = sum(name.startswith("journal-") and not name.endswith("-lock") for name in names)
    if segments:
        return "journal_directory", details | {"segments": segments}, ""
    return "directory", details, ""


def _holder(lock: Path) -> int | None:
    found = holders_of(lock)
    return found[0] if found else None


def _json_of(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= JSON_BYTES_MAX and path.is_file():
            values = json.loads(path.read_bytes())
            return values if isinstance(values, dict) else {}
    return {}


def _some(values: dict[str, object], *names: str) -> dict[str, object]:
    """Returns only the named values, because configurations have secrets."""
    found = {name: values[name] for name in names if isinstance(values.get(name), str | int)}
    return {name: value[:200] if isinstance(value, str) else value for name, value in found.items()}


# -- files ---------------------------------------------------------------------------------------
def open_regular(path: Path) -> int:
    """Opens a regular file for reading, and nothing else.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    # Without O_NONBLOCK, a pipe that took the file's place would make this wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def _of_file(path: Path, word: str) -> Found:
    descriptor = open_regular(path)
    try:
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if not head:
            return _of_empty(word)
        if starts_like_lmdb(head):
            return _of_lmdb(descriptor, path, word)
        if head[: len(COMPRESSED_MAGIC)] == COMPRESSED_MAGIC:
            return _of_container(path)
        if head[:8] in (MAGIC, MARK) or word == "front_log":
            return _of_front(descriptor)
        if head[:16] == _SQLITE_MAGIC:
            return _of_sqlite(path)
    finally:
        os.close(descriptor)
    if word == "front_end":
        size = path.stat().st_size
        problem = "" if size == END_BYTES else f"it has {size:,} bytes of {END_BYTES:,}"
        return word, {}, problem
    if len(head) >= 8 and struct.unpack_from("<I", head)[0] == LMDB_MAGIC:
        return "lock_table", {}, ""
    if word in WITHOUT_MARK:
        return _of_named(path, word, head)
    if not word and head[:2] == GZIP_MAGIC:
        found, details, problem = _of_log(head)
        return (found, details, "") if details.get("first_time") and not problem else NO_KIND
    found = _of_text(head)
    if word and found not in (word, "aside"):
        return word, {}, f"it is damaged: its contents are those of a file of kind {found!r}"
    return found, {}, ""


def _of_empty(word: str) -> Found:
    may_be = ("lock", "lock_table", "log", "traces", "statistics_log", "bootstrap_mark")
    if word in may_be:
        return word, {}, ""
    if word:
        return word, {}, "it is empty"
    return "empty", {}, ""


def _of_named(path: Path, word: str, head: bytes) -> Found:
    if word == "log":
        return _of_log(head)
    if word == "lock":
        return word, {"running_pid": _holder(path)}, ""
    if word in ("traces", "statistics_log", "bootstrap_mark"):
        return word, {}, ""
    try:
        values = json.loads(read_text(path)) if path.stat().st_size <= JSON_BYTES_MAX else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return word, {}, "it is damaged: it is no JSON object"
    return word, _some(values, "name", "group", "generation", "directory", "before_txid"), ""


def _of_log(head: bytes) -> Found:
    details: dict[str, object] = {}
    if head[:2] == GZIP_MAGIC:
        try:
            head = unpacked(io.BytesIO(head)).read(HEAD_BYTES)
        except zlib.error as error:
            return "log", {"compressed": True}, f"it is damaged: {error}"
        details["compressed"] = True
    line = head.partition(b"\n")[0]
    # A power cut may leave zeros further on, where lines were.
    if b"\0" in line:
        return "unknown", details, "its name is that of a log, its contents are not text"
    first = line[:64].decode("utf-8", "replace")
    time = first.split(" ")[0] if _LOG_LINE.match(line) else ""
    return "log", details | {"first_time": time}, ""


def _of_text(head: bytes) -> str:
    if b"\0" in head:
        return "unknown"
    try:
        # The last letter may be cut.
        text = head[: -4 if len(head) == HEAD_BYTES else None].decode().lstrip("\ufeff \r\n\t")
    except UnicodeDecodeError:
        return "log" if _LOG_LINE.match(head) else "unknown"
    if _PRIVATE_KEY.search(head):
        return "private_key"
    for begins, kind in (("-----BEGIN CERT", "certificate"), ("<?xml", ""), ("<AMPSC", "")):
        if text.startswith(begins):
            return kind or ("ampsconfig" if "<AMPSConfig" in text else "text")
    if _LOG_LINE.match(head):
        return "log"
    if text[:1] in ("{", "["):
        first = text.partition("\n")[0]
        if '"level":' in first and '"event":' in first:
            return "log"
        return "traces" if '"resourceSpans"' in first else "json"
    is_fabric = re.search(r"^(name|fabric):", text, re.M) and re.search(
        r"^(instances|groups|regions):", text, re.M
    )
    return "fabric_settings" if is_fabric else "text"


# -- Raylay's formats ----------------------------------------------------------------------------
def _of_container(path: Path) -> Found:
    try:
        with closing(Container(path)) as found:
            details: dict[str, object] = {
                "first_txid": found.first_txid,
                "last_txid": found.last_txid,
                "groups": len(found.groups),
            }
            return "compressed_segment", details, _misnamed(path, found.first_txid)
    except (StorageError, MemoryError) as error:
        return "compressed_segment", {}, str(error)


def _misnamed(path: Path, first_txid: int) -> str:
    match = re.match(r"journal-([0-9a-f]{16})\.", path.name)
    if match and int(match[1], 16) != first_txid:
        return f"it begins with transaction {first_txid}, not with that of its name"
    return ""


def _of_front(descriptor: int) -> Found:
    size = os.fstat(descriptor).st_size
    if size != FILE_BYTES:
        return "front_log", {}, f"it has {size:,} bytes of {FILE_BYTES:,}"
    entries = scan(os.pread(descriptor, FILE_BYTES, 0))
    details: dict[str, object] = {"commits": len(entries)}
    if entries:
        newest = max(entries, key=lambda each: (each.generation, each.number))
        details |= {"generation": newest.generation, "last_txid": newest.last_txid}
    return "front_log", details, ""


def _of_sqlite(path: Path) -> Found:
    try:
        with closing(sqlite3.connect(read_only_uri(path), **READ_ONLY)) as database:
            tables = {
                name
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000"
                )
            }
            if not {"SAMPLES", "LIFETIMES"} <= tables:
                return "sqlite", {"tables": len(tables)}, ""
            first, last = database.execute(
                "SELECT min(timestamp), max(timestamp) FROM SAMPLES"
            ).fetchone()
    except sqlite3.Error as error:
        return "statistics", {}, f"it cannot be read: {error}"
    details: dict[str, object] = {"tables": len(tables)}
    if first is not None:
        details |= {"first_time": time_text(first), "last_time": time_text(last)}
    return "statistics", details, ""


def _of_lmdb(descriptor: int, path: Path, word: str) -> Found:
    for look in range(LOOKS_MAX):
        try:
            return _of_pages(LmdbPages(descriptor, str(path)), path, word)
        except (CorruptRecord, struct.error) as error:
            if look == LOOKS_MAX - 1:
                return word or "lmdb", {}, str(error)
    raise AssertionError("no look was taken")


def _of_pages(pages: LmdbPages, path: Path, word: str) -> Found:
    summary = pages.summary
    details: dict[str, object] = {
        "entries": summary.entries,
        "used_bytes": summary.used_bytes,
        "transaction": summary.transaction,
    }
    header = pages.get(META_PREFIX + HEADER_KEY)
    if header is not None:
        return _of_segment(pages, header, path, details)
    if pages.get(VERSION_KEY) is not None:
        return _of_store(pages, word, details)
    if not summary.entries and word in ("spare_segment", "segment", "offline_store"):
        return word, details, ""
    keys = pages.first_keys(8)
    if word == "offline_store" and all(len(key) == 16 for key in keys):
        return word, details, ""
    return "lmdb", details, ""


def _of_segment(pages: LmdbPages, header: bytes, path: Path, details: dict[str, object]) -> Found:
    content = checked(header, HEADER_KEY, str(path))
    if len(content) != _HEADER.size:
        return "segment", details, "its header is that of another version"
    version, _, _, first_txid = _HEADER.unpack(content)
    details = {"version": version, "first_txid": first_txid, **details}
    seal = pages.get(META_PREFIX + SEAL_KEY)
    if seal is not None:
        last_txid, records, *_ = _SEAL.unpack(checked(seal, SEAL_KEY, str(path)))
        details |= {"last_txid": last_txid, "records": records}
    details["sealed"] = seal is not None
    return "segment", details, _misnamed(path, first_txid)


def _of_store(pages: LmdbPages, word: str, details: dict[str, object]) -> Found:
    version = pages.get(VERSION_KEY) or b""
    details = {"version": version[:20].decode("ascii", "replace"), **details}
    queue = pages.get(b"queue")
    if queue is not None:
        if len(queue) >= 16:
            details["after_txid"] = int.from_bytes(queue[8:16], "little")
        return "queue_store", details, ""
    incarnation = pages.get(b"incarnation")
    if incarnation is not None:
        details["incarnation"] = incarnation[:8].hex()
        return "state_store", details, ""
    keys = pages.first_keys(NAMES_SHOWN)
    if pages.get(b"rules") is not None or any(key.startswith(b"beside/") for key in keys):
        return "filtered_out_store", details, ""
    names = [key[1:].decode("utf-8", "replace") for key in keys if key[:1] == b"\0"]
    if names:
        return "sow_store", details | {"topics": names}, ""
    is_new = pages.summary.entries == 1 and word.endswith("_store")
    return word if is_new else "lmdb", details, ""
