"""The soak's faults: drawn by weight, the same for the same seed (tests/soak/faults.py)."""

from __future__ import annotations

import errno
import inspect
import random
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from soak import faults
from soak.faults import LASTING, WEIGHTS, Faults, SmallDisk, _limit_files, small_disks

DRAWS = 20_000


def drawn(seed: int, count: int) -> list[str]:
    breaker = Faults.__new__(Faults)  # a draw needs no run
    return [breaker.draw(random.Random(f"{seed}/{number}")) for number in range(count)]


def test_faults_are_drawn_by_weight_and_replay_from_a_seed() -> None:
    assert drawn(7, 50) == drawn(7, 50) != drawn(8, 50)
    counted = Counter(drawn(1, DRAWS))
    total = sum(WEIGHTS.values())
    for name, weight in WEIGHTS.items():
        assert counted[name] / DRAWS == pytest.approx(weight / total, rel=0.25), name


def test_each_fault_is_a_method_and_described() -> None:
    for name in WEIGHTS:
        method = getattr(Faults, name)
        assert inspect.iscoroutinefunction(method) and method.__doc__, name
        assert f"    {name} " in (faults.__doc__ or ""), name
    assert set(WEIGHTS) > LASTING


def test_a_process_may_be_kept_from_writing() -> None:
    """As a full disk does, but without one: the write fails and the process lives on."""
    script = (
        "import sys, tempfile\n"
        "with tempfile.TemporaryFile(buffering=0) as file:\n"
        "    for line in sys.stdin:\n"
        "        try:\n"
        "            file.write(b'x' * 100)\n"
        "            print('written', flush=True)\n"
        "        except OSError as error:\n"
        "            print(error.errno, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def says() -> str:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert says() == "written"
        assert _limit_files(process.pid, 0)
        assert says() == str(errno.EFBIG)
        assert _limit_files(process.pid, None)
        assert says() == "written"
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        assert soft == hard
        process.stdin.close()
    assert not _limit_files(process.pid, 0)


def test_a_small_disk_is_really_full(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except OSError as error:
        pytest.skip(f"{error}")
    try:
        before = disk.path / "before"
        before.write_bytes(b"x" * 10_000)
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(b"x" * 10_000)
        disk.free()
        (disk.path / "more").write_bytes(b"x" * 10_000)
        assert before.read_bytes() == b"x" * 10_000
    finally:
        disk.close()
    assert not (disk.path / "before").exists()


def test_where_no_disk_can_be_mounted_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert small_disks({"a": tmp_path / "a"}) == {}
    assert not (tmp_path / "a").exists()
