"""What a Ray that Raylay begins has on the disk, and what it leaves there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, stat
from pathlib import Path
os.umask(0)
from raylay.services.fabric.cluster import ray_access
ray_access.start_ray({"log_to_driver": False})
import ray._private.worker as worker
node = worker._global_node
print(os.environ["HOME"], stat.S_IMODE(os.stat(Path.home() / ".ray" / "auth_token").st_mode))
around = Path(node.get_session_dir_path()).parents[1]
print(around, stat.S_IMODE(around.stat().st_mode), node.get_session_dir_path())
print(node.get_session_dir_path(), node.max_bytes, node.backup_count)
ray_access.leave_ray()
"""


@pytest.mark.slow
@pytest.mark.covers("Configuration", "nobody else gets at the sockets")
def test_a_ray_that_ends_in_order_leaves_no_session_directory_and_bounds_its_logs(
    tmp_path: Path,
) -> None:
    """While it is there nobody else gets at its sockets, its logs and its token."""
    unset = {"RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in unset}
        | {"HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    home, token, around, mode, session, *last = done.stdout.split()[-8:]
    assert (home, int(token), int(mode)) == (str(tmp_path), 0o600, 0o700)
    assert Path(session).is_relative_to(around)
    directory, max_bytes, backups = last
    assert (int(max_bytes), int(backups)) == (16 << 20, 2)
    assert Path(directory).parent.is_dir() and not Path(directory).exists()


JOINED = """
import os, sys
from pathlib import Path
from raylay.services.fabric.cluster import ray_access
ray_access.join_ray(sys.argv[1])
import ray._private.worker as worker
logs = Path(worker._global_node.get_session_dir_path()) / "logs"
mine = f"*_{os.getpid()}.log"
found = len(list(logs.rglob(mine)))
ray_access.leave_ray()
print(found, len(list(logs.rglob(mine))), len(list(logs.rglob("*.log"))))
"""
BEGAN = f"""
import subprocess, sys
from raylay.services.fabric.cluster import ray_access
ray_access.start_ray({{"log_to_driver": False}})
import ray
address = ray.get_runtime_context().gcs_address
done = subprocess.run([sys.executable, "-c", {JOINED!r}, address], capture_output=True, text=True)
print(done.stdout or done.stderr)
ray_access.leave_ray()
"""


@pytest.mark.slow
def test_a_command_that_asks_a_ray_leaves_no_file_in_its_session_directory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGAN], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    before, left, of_others = map(int, done.stdout.split()[-3:])
    assert before >= 1 and left == 0 and of_others >= 1, done.stdout
