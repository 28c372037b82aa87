"""services/telemetry/bounded_files.py on a real disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.private_files import open_to_others

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.bounded_files import BoundedFile


def test_lines_are_appended_and_files_follow_each_other(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "new" / "dir", "A/1", "log", 20, 100)
    first = file.path
    assert first.name == f"A_1-{os.getpid()}.log"
    for number in range(4):
        file.write(b"line %d....\n" % number)
    file.close()
    assert first.read_bytes() == b"line 0....\n"
    assert file.path.name == f"A_1-{os.getpid()}.3.log"
    assert file.path.read_bytes() == b"line 3....\n"


@pytest.mark.covers("Configuration", "what is made on the disk is its owner's alone")
@pytest.mark.usefixtures("no_umask")
def test_others_read_neither_file_nor_directory(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "new" / "logs", "A", "log", 20, 100)
    file.write(b"line\n")
    file.close()
    assert open_to_others(tmp_path / "new") == []


def test_a_line_longer_than_a_file_is_written_whole(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path, "A", "log", 10, 10)
    file.write(b"x" * 50 + b"\n")
    assert file.path.read_bytes() == b"x" * 50 + b"\n"


def test_only_files_of_the_name_are_removed(tmp_path: Path) -> None:
    others = ["A-B-1.log", "AB-1.log", "A-1.jsonl", "A.log", "A-x.log"]
    mine = ["A-1.log", "A-1.1.log", "A-2.log"]
    for age, name in enumerate([*others, *mine]):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (age, age))
    file = BoundedFile(tmp_path, "A", "log", 100, 200)
    file.write(b"x\n")
    file.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, "A-2.log", f"A-{os.getpid()}.log"}


def test_a_process_that_writes_nothing_leaves_no_file(tmp_path: Path) -> None:
    BoundedFile(tmp_path, "A", "log", 100, 200).close()
    assert list(tmp_path.iterdir()) == []


def test_the_bound_holds_for_processes_that_have_their_id_in_their_name(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from raylay.services.telemetry.bounded_files import BoundedFile\n"
        "file = BoundedFile(Path(sys.argv[1]), f'clients-{os.getpid()}', 'jsonl', 100, 200)\n"
        "file.write(b'x' * 99 + b'\\n')\n"
        "print(file.path.name == f'clients-{os.getpid()}.jsonl')\n"
    )
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "True\n", done.stderr
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 200


def test_a_short_write_is_taken_back(tmp_path: Path) -> None:
    # A limit of the process stands for a full disk: the write that crosses it is cut short.
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from raylay.services.telemetry.bounded_files import BoundedFile\n"
        "import resource\n"
        "file = BoundedFile(Path(sys.argv[1]), 'A', 'log', 1000, 1000)\n"
        "file.write(b'first line\\n')\n"
        "for line in (b'second line\\n', b'lost line\\n'):\n"
        "    try:\n        file.write(line)\n    except OSError as error: print(error.errno)\n"
        "infinite = resource.RLIM_INFINITY\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (infinite, infinite))\n"
        "file.write(b'third line\\n')\n"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))

    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "28\n28\n"  # ENOSPC: cut short, and taken back
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().splitlines() == [b"first line", b"third line"]


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file"):
        BoundedFile(tmp_path / "file", "A", "log", 10, 10)


def test_a_closed_file_opens_again(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path, "A", "log", 100, 100)
    file.write(b"one\n")
    file.close()
    file.close()
    file.write(b"two\n")
    assert file.path.read_bytes() == b"one\ntwo\n"
