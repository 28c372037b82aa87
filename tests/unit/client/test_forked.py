"""What tests take for a process of a user is one: its parent, its streams, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import forked

TOLD = """
import os, resource, sys
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
print(os.getpid(), os.getppid(), sys.argv, os.getcwd(), dict(os.environ), limits[0], __name__)
print(sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""
BELOW = """
import os, subprocess, sys
from raylay.services.server.children.subprocess import subprocess as of_links
child = of_links.Popen([sys.executable, "-m", "raylay.services.processes.link.run_link"],
                       stdin=of_links.PIPE)
command = open(f"/proc/{child.pid}/cmdline").read().split(chr(0))
status = open(f"/proc/{child.pid}/status").read()
child.kill()
print("run_link" in " ".join(command), f"PPid:\\t{os.getpid()}\\n" in status, child.wait())
"""


def test_a_process_is_as_it_was_asked_for(tmp_path: Path) -> None:
    process = forked.Popen(
        [sys.executable, "-c", TOLD, "more"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"ONE": "1"},
    )
    out, err = process.communicate("given", timeout=60)
    told = [process.pid, os.getpid(), ["-c", "more"], str(tmp_path), {"ONE": "1"}, -1, "__main__"]
    assert out == " ".join(map(str, told)) + "\n"
    assert (err, process.returncode) == ("given\n", 3)


def test_its_end_is_told() -> None:
    with forked.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert process.poll() is None
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert command[:3] == [os.fsencode(sys.executable), b"-c", b"import time; time.sleep(60)"]
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    done = forked.run([sys.executable, "-c", "1/0"], capture_output=True, text=True)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    done = forked.run([sys.executable, "-c", "raise SystemExit('why')"], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"why\n")
    with pytest.raises(subprocess.CalledProcessError):
        forked.run([sys.executable, "-c", "raise SystemExit(2)"], check=True)


def test_what_it_starts_as_a_link_is_its_child() -> None:
    done = forked.run([sys.executable, "-c", BELOW], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True", str(-signal.SIGKILL)], done.stderr
