"""The search for a bookmark, a transaction id, a client, a topic or a text in logs and journals.

Files are read piece by piece, so a line of any length and a file of any size cost little memory.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from raylay.services.errors import ConfigurationError, CorruptRecord
from raylay.services.inspection.gzip_reading import GZIP_MAGIC, unpacked
from raylay.services.inspection.identification import identify_all, open_regular
from raylay.services.inspection.journal_rows import JournalSelection, Row, record_row, records_of
from raylay.services.messages.lossless_text import bytes_of
from raylay.services.messages.records import Record, Run, publisher_id
from raylay.storage.lmdb_journal import LmdbJournalReader
from raylay.storage.segments import SegmentFile

KINDS = ("bookmark", "txid", "client", "topic", "text")
LINE_BYTES_MAX = 1024 * 1024
"""Bytes of a line that are looked at together; a longer line is looked at in parts."""
LINE_CHARACTERS_SHOWN = 4_000
_BOOKMARK = re.compile(r"(\d{1,20})\|(\d{1,19})\|?")
_NUMBER = re.compile(r"\d{1,19}")
_CODE = re.compile(r"(?<![0-9A-Za-z-])([0-9A-F]{2}-\d{4})(?![0-9A-Za-z-])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)")
_LOG_KINDS = frozenset(("log", "text", "json", "traces"))
_JOURNAL_KINDS = frozenset(("segment", "compressed_segment", "journal_directory"))


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The thing that is looked for.

    Attributes:
        kinds: the kinds that the text may be of; a record or line of any of them is found.
        text: text to find, as the user typed it.
        is_pattern: whether the text is a regular expression, over topics, bodies and lines.
        ignores_case: whether letters may differ in case, in topics, bodies and lines.
    """

    kinds: tuple[str, ...]
    text: str
    is_pattern: bool = False
    ignores_case: bool = False

    @property
    def bookmark(self) -> tuple[int, int] | None:
        """Publisher and sequence, where a bookmark may be meant."""
        match = _BOOKMARK.fullmatch(self.text) if "bookmark" in self.kinds else None
        return None if match is None else (int(match[1]), int(match[2]))

    @property
    def txid(self) -> int | None:
        """The transaction id, where one may be meant."""
        may_be = "txid" in self.kinds and _NUMBER.fullmatch(self.text)
        return int(self.text) if may_be else None


def search_query(
    text: str, kind: str = "", *, pattern: bool = False, ignore_case: bool = False
) -> SearchQuery:
    """Returns the query for a text; without a kind, the kinds that the text looks like.

    Raises:
        ConfigurationError: the text is not of that kind.
    """
    if not text:
        raise ConfigurationError("an empty text is in every line: say what to find")
    if kind and kind not in KINDS:
        raise ConfigurationError(f"{kind!r} is no kind: give one of {', '.join(KINDS)}")
    for name, form in (("bookmark", _BOOKMARK), ("txid", _NUMBER)):
        if kind == name and not form.fullmatch(text):
            like = "PUBLISHER|SEQUENCE|" if name == "bookmark" else "4711"
            raise ConfigurationError(f"{text!r} is no {name}: write it like {like}")
    if pattern:
        if kind in ("bookmark", "txid", "client"):
            raise ConfigurationError(f"a {kind} is found as it is: leave out --regex")
        try:
            re.compile(text.encode())
        except re.error as error:
            raise ConfigurationError(
                f"{text!r} is not a valid regular expression: {error}"
            ) from None
    if kind:
        kinds: tuple[str, ...] = (kind,)
    elif pattern:
        kinds = ("topic", "text")
    elif _BOOKMARK.fullmatch(text) and "|" in text:
        kinds = ("bookmark",)
    elif _NUMBER.fullmatch(text):
        kinds = ("txid",)
    else:
        kinds = ("client", "topic")
    return SearchQuery(kinds, text, pattern, ignore_case)


# -- logs ----------------------------------------------------------------------------------------
def line_pattern(query: SearchQuery) -> re.Pattern[bytes]:
    """Returns the pattern of the lines of logs that are found."""
    flags = re.IGNORECASE if query.ignores_case else 0
    if query.bookmark is not None:
        publisher, sequence = query.bookmark
        return re.compile(rf"(?<!\d){publisher}\|{sequence}(?!\d)".encode())
    if query.txid is not None:
        # A line has other numbers, too: only a field's name says that one is a transaction id.
        return re.compile(rf'txid\w*"?\s?[=:]\s?"?{query.txid}(?!\d)'.encode(), re.IGNORECASE)
    text = query.text if query.is_pattern else re.escape(query.text)
    return re.compile(bytes_of(text), flags)


def log_rows(path: Path, query: SearchQuery) -> Iterator[Row]:
    """Yields a row for each line of a log, plain or compressed with gzip, that is found.

    Raises:
        CorruptRecord: the file is damaged.
        OSError: it cannot be read.
    """
    pattern = line_pattern(query)
    descriptor = open_regular(path)
    with open(descriptor, "rb") as plain:
        is_gzip = os.pread(descriptor, 2, 0) == GZIP_MAGIC
        file: IO[bytes] = unpacked(plain) if is_gzip else plain
        try:
            for number, piece in _pieces(file, None if is_gzip else descriptor):
                if pattern.search(piece):
                    yield _line_row(path, number, piece)
        except zlib.error as error:
            raise CorruptRecord(f"{path} is damaged: {error}", str(path)) from None


def _pieces(file: IO[bytes], descriptor: int | None) -> Iterator[tuple[int, bytes]]:
    """Yields the number of each line and its bytes, a long line in several pieces."""
    number = 1
    while piece := file.readline(LINE_BYTES_MAX):
        if len(piece) == LINE_BYTES_MAX and not piece.strip(b"\0"):
            # A hole of a sparse file, which may be as long as a disk.
            if descriptor is not None and not _skip_hole(file, descriptor):
                return
            continue
        yield number, piece
        number += piece.endswith(b"\n")


def _skip_hole(file: IO[bytes], descriptor: int) -> bool:
    at = file.tell()
    try:
        file.seek(os.lseek(descriptor, at, os.SEEK_DATA))
    except OSError:
        return False  # There is nothing more.
    return True


def _line_row(path: Path, number: int, piece: bytes) -> Row:
    text = piece.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    row: Row = {"row": "line", "file": str(path), "line": number}
    time, code = _TIME.search(text[:200]), _CODE.search(text[:400])
    if time:
        row["time"] = time[0]
    if code:
        row["code"] = code[1]
    return row | {"text": text[:LINE_CHARACTERS_SHOWN]}


# -- journals ------------------------------------------------------------------------------------
def journal_search_rows(place: JournalSelection, query: SearchQuery, body: bool) -> Iterator[Row]:
    """Yields a row for each record of a journal that is found.

    Raises:
        StorageError: the journal cannot be read, or is damaged.
    """
    with LmdbJournalReader(place.directory, place.archive) as reader:
        first, end = place.first_txid, place.end_txid
        if query.bookmark is not None:
            found = reader.find_sequence(*query.bookmark)
            if found is None or found < first or (end is not None and found >= end):
                return
            first, end = found, found + 1
        elif query.txid is not None:
            wanted = query.txid
            if wanted < first or (end is not None and wanted >= end):
                return
            first, end = max(1, wanted), wanted + 1
        wants_run, wants = _wanted(query)
        for begin, behind in _stretches(reader, query, first, end):
            for txid, run, record in records_of(reader, begin, behind, wants_run):
                if record is not None and wants(record):
                    yield {
                        "row": "record",
                        "file": str(place.directory),
                        **record_row(txid, run, record, body),
                    }


def _stretches(
    reader: LmdbJournalReader, query: SearchQuery, first: int, end: int | None
) -> Iterator[tuple[int, int | None]]:
    """Yields the parts of the journal that may have records that are looked for, each by its first
    transaction id and the one behind its end. The segments' indexes leave out the other parts."""
    if query.bookmark is not None or query.txid is not None or "text" in query.kinds:
        yield first, end
        return
    wants_topic, client = _wants_topic(query), _client(query)
    files = reader.segment_files()
    for number, file in enumerate(files):
        behind = files[number + 1].first_txid if number + 1 < len(files) else None
        if (behind is not None and behind <= first) or (end is not None and file.first_txid >= end):
            continue
        if _may_have(reader, file, wants_topic, client):
            ends = [each for each in (behind, end) if each is not None]
            yield max(first, file.first_txid), min(ends) if ends else None


def _may_have(
    reader: LmdbJournalReader,
    file: SegmentFile,
    wants_topic: Callable[[str], bool] | None,
    client: int,
) -> bool:
    if file.suffix == ".live":
        return True  # It grows.
    try:
        index = reader.indexed(file)[1]
    except FileNotFoundError:
        return True  # It has just been compressed, archived or removed: the reader looks again.
    if client and index.summary.get(client):
        return True
    if wants_topic is None:
        return False
    topics = index.topics
    return topics is None or any(wants_topic(_text(topic)) for topic, _ in topics)


def _wanted(
    query: SearchQuery,
) -> tuple[Callable[[Run], bool], Callable[[Record], bool]]:
    """Returns two tests: whether a run may have records that are looked for, and whether a record
    of such a run is one of them."""
    if query.bookmark is not None:
        publisher, sequence = query.bookmark
        return (
            lambda run: run.publisher == publisher,
            lambda record: (record.publisher, record.sequence) == (publisher, sequence),
        )
    if query.txid is not None:
        return lambda run: True, lambda record: True
    client, wants_topic = _client(query), _wants_topic(query)
    bodies = line_pattern(query) if "text" in query.kinds else None

    def wants(record: Record) -> bool:
        if client and record.publisher == client:
            return True
        if wants_topic is not None and wants_topic(record.topic):
            return True
        return bodies is not None and bodies.search(record.body) is not None

    def wants_run(run: Run) -> bool:
        if bodies is not None or (client and run.publisher == client):
            return True
        # A run whose records have several topics has no topic in its header.
        return wants_topic is not None and (not run.topic or wants_topic(_text(run.topic)))

    return wants_run, wants


def _client(query: SearchQuery) -> int:
    return publisher_id(query.text) if "client" in query.kinds else 0


def _wants_topic(query: SearchQuery) -> Callable[[str], bool] | None:
    """Returns a test whether a topic is looked for; None: the query is not for topics."""
    if "topic" not in query.kinds:
        return None
    flags = re.IGNORECASE if query.ignores_case else 0
    pattern = re.compile(query.text if query.is_pattern else rf"{re.escape(query.text)}\Z", flags)
    found = pattern.search if query.is_pattern else pattern.match
    return lambda topic: found(topic) is not None


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


# -- places --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SearchPlace:
    """A log or a journal to search.

    Attributes:
        kind: `log`, `journal`, or `problem` where the path cannot be searched.
        problem: the reason.
    """

    path: Path
    kind: str
    problem: str = ""


def search_places(path: Path) -> Iterator[SearchPlace]:
    """Yields the logs and journals that a path means: itself, or those below a directory."""
    journals: set[Path] = set()
    is_first = True
    for found in identify_all(path):
        each = Path(found.path)
        if any(each.is_relative_to(journal) and each != journal for journal in journals):
            continue
        named, is_first = is_first, False
        if found.kind in _JOURNAL_KINDS and (named or found.kind == "journal_directory"):
            journals.add(each)
            yield SearchPlace(each, "journal")
        elif found.kind == "archive_directory":
            journals.add(each)  # Its journal reads it.
            if named:
                yield SearchPlace(each, "problem", "it is an archive: name its journal")
        elif found.kind == "log" or (named and found.kind in _LOG_KINDS):
            yield SearchPlace(each, "log", found.problem)
        elif named and not each.is_dir():
            why = found.problem or f"it is of kind {found.kind!r}, no log and no journal"
            yield SearchPlace(each, "problem", why)
        elif found.problem and found.kind in ("directory", "unreadable"):
            yield SearchPlace(each, "problem", found.problem)
