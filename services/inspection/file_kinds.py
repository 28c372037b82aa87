"""The kinds of files that an instance, a fabric or a command leaves on the disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

MESSAGES, REBUILT, SETTINGS, NOTHING = "messages", "rebuilt", "settings", "nothing"
LOSSES = {
    MESSAGES: "it holds messages: their only copy here",
    REBUILT: "it is made again from the journal, or by use",
    SETTINGS: "an instance or a fabric needs it to start as it was",
    NOTHING: "nothing is lost without it",
}
"""Consequences of losing a file, by a word for `--json`."""


class FileKind(NamedTuple):
    """A kind of file.

    Attributes:
        word: name of the kind in `--json`.
        text: noun phrase for a reader.
        loss: key of LOSSES.
    """

    word: str
    text: str
    loss: str


_KINDS = (
    FileKind("data_directory", "data directory of an instance", MESSAGES),
    FileKind("fabric_directory", "directory of a fabric", SETTINGS),
    FileKind("journal_directory", "journal", MESSAGES),
    FileKind("archive_directory", "archive of a journal", MESSAGES),
    FileKind("backup_directory", "backup of an instance's data", MESSAGES),
    FileKind("directory", "directory", NOTHING),
    FileKind("segment", "segment of a journal", MESSAGES),
    FileKind("compressed_segment", "compressed segment of a journal", MESSAGES),
    FileKind("spare_segment", "empty segment, made ahead", NOTHING),
    FileKind("front_log", "front log: commits in front of the newest segment", MESSAGES),
    FileKind("front_end", "extent of the front log, for readers in other processes", NOTHING),
    FileKind("state_store", "state of an instance: its identity and acknowledgments", SETTINGS),
    FileKind("sow_store", "records of SOW topics", REBUILT),
    FileKind("queue_store", "acknowledgment state of a queue", REBUILT),
    FileKind("filtered_out_store", "sequences that a link's filters left out", REBUILT),
    FileKind("offline_store", "messages that wait for slow clients", NOTHING),
    FileKind("lock_table", "lock table of an LMDB file", NOTHING),
    FileKind("lock", "lock of a process", NOTHING),
    FileKind("statistics", "statistics database", NOTHING),
    FileKind("statistics_log", "write-ahead log or index of a statistics database", NOTHING),
    FileKind("instance_file", "configuration of an instance", SETTINGS),
    FileKind("fabric_file", "record of a fabric: settings, ports, moves", SETTINGS),
    FileKind("backup_manifest", "manifest of a backup", MESSAGES),
    FileKind("archive_pointer", "place of a journal's archive", MESSAGES),
    FileKind("archive_id", "identity of an archive", MESSAGES),
    FileKind("removal_floor", "transaction id up to which segments may be removed", REBUILT),
    FileKind("read_hold", "note of a planned read, which keeps segments", NOTHING),
    FileKind("salvage_mark", "result of the last salvage", NOTHING),
    FileKind("bootstrap_mark", "mark of a bootstrap that is not finished", NOTHING),
    FileKind("drill_mark", "mark of a drill", NOTHING),
    FileKind("known_fabric", "what an administrator's interface knows of its fabric", REBUILT),
    FileKind("aside", "part of a file that was being written", NOTHING),
    FileKind("log", "log", NOTHING),
    FileKind("traces", "traces of messages", NOTHING),
    FileKind("certificate", "certificate", SETTINGS),
    FileKind("private_key", "private key", SETTINGS),
    FileKind("ampsconfig", "AMPSConfig file", SETTINGS),
    FileKind("fabric_settings", "settings of a fabric in YAML", SETTINGS),
    FileKind("socket", "Unix socket", NOTHING),
    FileKind("fifo", "named pipe", NOTHING),
    FileKind("device", "device", NOTHING),
    FileKind("empty", "empty file", NOTHING),
    FileKind("lmdb", "LMDB file that is none of Raylay's", NOTHING),
    FileKind("sqlite", "SQLite database that is none of Raylay's", NOTHING),
    FileKind("json", "JSON", NOTHING),
    FileKind("text", "text", NOTHING),
    FileKind("unknown", "file that is none of Raylay's", NOTHING),
    FileKind("missing", "nothing: it does not exist", NOTHING),
    FileKind("unreadable", "file that cannot be read", NOTHING),
)
KINDS = {kind.word: kind for kind in _KINDS}

_NAMES = (
    (r"journal-[0-9a-f]{16}\.(live|sealed)", "segment"),
    (r"journal-[0-9a-f]{16}\.zst", "compressed_segment"),
    (r"spare-\d+\.live", "spare_segment"),
    (r"front-\d", "front_log"),
    (r"front-end", "front_end"),
    (r"state\.lmdb", "state_store"),
    (r"sow\.lmdb", "sow_store"),
    (r"[0-9a-f]{16}\.lmdb", "queue_store"),
    (r"verdicts-[0-9a-f]{16}", "filtered_out_store"),
    (r"statistics\.db", "statistics"),
    (r"statistics\.db-(wal|shm|journal)", "statistics_log"),
    (r"instance\.json", "instance_file"),
    (r"fabric\.json", "fabric_file"),
    (r"backup\.json", "backup_manifest"),
    (r"archive\.json", "archive_pointer"),
    (r"archive-id\.json", "archive_id"),
    (r"removable", "removal_floor"),
    (r"read-hold-.*", "read_hold"),
    (r"salvaged\.json", "salvage_mark"),
    (r"bootstrap\.unfinished", "bootstrap_mark"),
    (r"drill(-head)?\.json", "drill_mark"),
    (r"admin-fabric\.json", "known_fabric"),
    (r".*-lock", "lock_table"),
    (r"lock|maintenance\.lock|up\.lock", "lock"),
    (r".*\.log(\.gz)?", "log"),
    (r".*\.jsonl", "traces"),
)
_BY_NAME = tuple((re.compile(pattern), word) for pattern, word in _NAMES)
ENDINGS = {
    ".damaged": "put aside because it was damaged",
    ".rewritten": "a copy that was to take the file's place",
    ".aside": "it was being written when its process ended",
}
WITHOUT_MARK = frozenset(
    (
        "lock",
        "removal_floor",
        "read_hold",
        "salvage_mark",
        "bootstrap_mark",
        "drill_mark",
        "known_fabric",
        "statistics_log",
        "instance_file",
        "fabric_file",
        "backup_manifest",
        "archive_pointer",
        "archive_id",
        "traces",
        "log",
    )
)
"""Kinds that the name tells: their contents are JSON, text or nothing in particular."""


def kind_by_name(name: str) -> tuple[str, str]:
    """Returns the kind of a file of this name (empty: the name says nothing), and what the ending
    of its name adds."""
    note = ""
    for ending, text in ENDINGS.items():
        if name.endswith(ending):
            name, note = name.removesuffix(ending).lstrip("."), text
    for pattern, word in _BY_NAME:
        if pattern.fullmatch(name):
            return word, note
    return ("aside" if note else ""), note


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The result of looking at one path.

    Attributes:
        path: the path, as the caller gave it.
        kind: key of KINDS.
        details: facts from the first bytes, such as the first transaction id.
        note: clause on a fact that the file's name tells, such as that it was put aside.
        problem: fault of the file, as far as a few bytes tell; empty: there is none.
        size_bytes: length; None: it has none.
        disk_bytes: space that it takes, which is less for a sparse file.
    """

    path: str
    kind: str
    details: dict[str, object]
    note: str = ""
    problem: str = ""
    size_bytes: int | None = None
    disk_bytes: int | None = None

    def as_object(self) -> dict[str, object]:
        """Returns the identity for `--json`."""
        kind = KINDS[self.kind]
        return {
            "path": self.path,
            "kind": self.kind,
            "text": kind.text,
            "loss": kind.loss,
            "size_bytes": self.size_bytes,
            "disk_bytes": self.disk_bytes,
            "details": self.details,
            "note": self.note,
            "problem": self.problem,
        }
