"""A backup of one data directory, made in a process that leaves the processor to all others: on
this host, or on another node of Ray.

`python -m raylay.services.commands.shared.separate_backup` is what the other node runs: it reads a
`BackupRequest` as JSON from its standard input, and writes one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raylay.services.commands.shared.printing import echo_json
from raylay.services.errors import RaylayError, StorageError
from raylay.services.inspection.separate_reading import read_separately
from raylay.services.server.data.backup import make_backup
from raylay.services.server.data.backup_manifest import BackupManifest, Row

NICENESS = 10
"""Increase of the niceness of a backup: instances on the host go first."""
SHOWN_MAX = 500


@dataclass(frozen=True, slots=True)
class BackupRequest:
    """A backup to make.

    Attributes:
        directory: absolute path of the data directory.
        place: absolute path of the directory in which the backup's directory is made.
        fabric: name of the fabric.
        record: text of the fabric's record.
    """

    directory: str
    place: str
    fabric: str
    record: str


def make_separately(request: BackupRequest) -> tuple[str, BackupManifest]:
    """Makes and verifies a backup in a child process. Returns its path and its manifest.

    Raises:
        StorageError: a file cannot be copied, or the copy is not sound; nothing is left of it.
    """

    def rows() -> Iterator[Row]:
        _let_others_go_first()
        place = Path(request.place)
        return make_backup(Path(request.directory), place, request.fabric, request.record)

    *_, last = read_separately(rows, request.directory)
    path = str(last["backup"])
    return path, BackupManifest.of(last["manifest"], path)


def make_there(request: BackupRequest) -> dict[str, str]:
    """Makes and verifies a backup from a worker of Ray. Returns the `backup`'s path and its
    `manifest` as text; or an `error`."""
    # A process that has Ray's threads is not to be forked: the program begins anew.
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip()[-SHOWN_MAX:] or "it said nothing"
        return {"error": f"the backup's process ended with code {done.returncode}: {said}"}
    return found


def _let_others_go_first() -> None:
    """Leaves the processor to all others. Linux gives each session its share, however nice its
    processes are: so this process gets a session of its own, which is nice, too."""
    os.setsid()
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")


def manifest_of(answer: dict[str, str]) -> tuple[str, BackupManifest]:
    """Returns the path and the manifest of what `make_there` made.

    Raises:
        StorageError: it made none, and why.
    """
    if "error" in answer:
        raise StorageError(answer["error"], "")
    path = answer["backup"]
    return path, BackupManifest.of(answer["manifest"], path)


def main() -> None:
    """Makes the backup that the standard input asks for."""
    values: dict[str, Any] = json.load(sys.stdin)
    try:
        path, manifest = make_separately(BackupRequest(**values))
    except (RaylayError, OSError) as error:
        echo_json({"error": str(error)})
        return
    echo_json({"backup": path, "manifest": manifest.text()})


if __name__ == "__main__":
    main()
