"""What a Ray that Raylay begins leaves on the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from raylay.services.fabric import ray_access
ray_access.start_ray({"log_to_driver": False})
import ray._private.worker as worker
node = worker._global_node
print(node.get_session_dir_path(), node.max_bytes, node.backup_count)
ray_access.leave_ray()
"""


def test_a_ray_that_ends_in_order_leaves_no_session_directory_and_bounds_its_logs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    directory, max_bytes, backups = done.stdout.split()[-3:]
    assert (int(max_bytes), int(backups)) == (16 << 20, 2)
    assert Path(directory).parent.is_dir() and not Path(directory).exists()


JOINED = """
import os, sys
from pathlib import Path
from raylay.services.fabric import ray_access
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
from raylay.services.fabric import ray_access
ray_access.start_ray({{"log_to_driver": False}})
import ray
address = ray.get_runtime_context().gcs_address
done = subprocess.run([sys.executable, "-c", {JOINED!r}, address], capture_output=True, text=True)
print(done.stdout or done.stderr)
ray_access.leave_ray()
"""


def test_a_command_that_asks_a_ray_leaves_no_file_in_its_session_directory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGAN], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    before, left, of_others = map(int, done.stdout.split()[-3:])
    assert before >= 1 and left == 0 and of_others >= 1, done.stdout
