"""A Ray cluster on a playground: a head without instances and three regions, a host each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import Server
from raylay.services.configuration.model import FabricSettings
from raylay.services.fabric.plan import FabricRecord, servers

ROOT = Path(__file__).parents[2]
PLAYGROUND = ROOT / "deploy" / "playground"
NAME = "test"
NETWORK = "10.78"
PATIENCE_S = 420.0
"""For anything, on a machine that is busy with other things."""
HOSTS = {"head": "head-1", "Chicago": "chicago-1", "NewYork": "newyork-1", "London": "london-1"}
"""The first host of each region."""
LINE = os.environ.get("RAYLAY_HOSTS_LINE", "").split()
"""What lies between the regions: `--delay-ms 20 --loss 1%`."""
FABRIC = """
fabric: flights
topics: [{name: flights/.*, message_type: json}]
regions: {Chicago: 2, NewYork: 1, London: 1}
connect_regions: async
downgrade: {age: 2s}
tracing: {sampling_ratio: 0.01, directory: traces}
logs: {target: file, format: json}
drills: allowed
unauthenticated: allowed
"""
KEPT = "GCS_STORAGE=rocksdb"
REDIS_PORT = 6390
REDIS_PASSWORD = "not-so-secret-in-a-test"
DIRECTORY = "flights"
"""In the home of the hosts' user."""


def run(*command: str | Path, check: bool = True, given: str | None = None) -> str:
    """Runs a command here; its output."""
    done = subprocess.run(
        [str(part) for part in command],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def wait_until(what: str, found: Callable[[], object], every_s: float = 0.5) -> None:
    """Returns when `found()` is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline_s, f"after {PATIENCE_S:.0f} s: not {what}"
        time.sleep(every_s)


class Cluster:
    """The playground with Ray on it and a fabric on that."""

    def __init__(
        self,
        directory: Path,
        regions: tuple[str, ...] = tuple(HOSTS),
        redis_on: str = "",
        fabric: str = FABRIC,
    ) -> None:
        """`regions`: NAME or NAME=HOSTS; `redis_on`: whose first host has a Redis, in which the
        head keeps what it knows; `fabric`: what is started, a YAML text."""
        self.fabric = fabric
        self.directory = directory
        self.regions = regions
        self.redis_on = redis_on
        self.file = directory / "cluster.yaml"
        self.root = Path(
            os.environ.get("RAYLAY_PLAYGROUND_DIR", "/var/lib/raylay-playground"), NAME
        )

    def ground(self, *arguments: str) -> str:
        """A command of the playground."""
        return run(sys.executable, PLAYGROUND, "--name", NAME, *arguments)

    def on(self, region: str, command: str, *, check: bool = True, given: str | None = None) -> str:
        """A command on a host, or on the first one of a region, in a shell."""
        config = self.root / "ssh_config"
        host = HOSTS.get(region, region)
        return run("ssh", "-F", config, host, command, check=check, given=given)

    def ray(self, *arguments: str) -> str:
        """A command of Ray's cluster launcher, here."""
        return run(Path(sys.executable).with_name("ray"), *arguments)

    def living(self) -> int:
        """How many nodes the head counts among the living."""
        program = (
            "import os; from ray._raylet import GcsClient; c = GcsClient(os.environ['RAY_ADDRESS'])"
            "; print(sum(n.state == 0 for n in c.get_all_node_info(timeout=5).values()))"
        )
        return int(self.on("head", f'python -c "{program}"', check=False) or 0)

    def home(self, region: str) -> Path:
        """The home directory of a host's user, seen from here; of a host, or a region's first."""
        return self.root / HOSTS.get(region, region) / "srv" / "raylay"

    def record(self) -> FabricRecord:
        """What the driver on the head's host keeps of the fabric."""
        found = FabricRecord.load(self.home("head") / DIRECTORY)
        assert found is not None
        return found

    def servers(self, group: str) -> list[Server]:
        """The addresses for clients."""
        record = self.record()
        return servers(FabricSettings.from_json(record.settings), record, group)

    def client_options(self) -> dict[str, Any]:
        """By which a client is let in, where somebody is kept out."""
        credentials = self.home("head") / "raylay" / "credentials"
        if "\nauthentication:" not in self.fabric:
            return {}
        return {
            "user_id": "operator",
            "password": (credentials / "operator-password").read_text().strip(),
            "tls": {"ca_file": str(credentials / "ca.pem")},
        }

    def journal(self, name: str) -> Path:
        """The journal of an instance, seen from here."""
        return self.home(name.partition("-")[0]) / DIRECTORY / name / "journal"

    def status(self, region: str = "head") -> dict[str, dict[str, Any]]:
        """Of each instance, by name, as `raylay status --json` on that host says it."""
        text = self.on(region, "raylay status --json", check=False)
        if not text.startswith("{"):
            return {}
        return {found["name"]: found for found in json.loads(text)["instances"]}

    def is_whole(self) -> bool:
        """Whether every instance is ready and every destination has caught up."""
        found = self.status()
        return bool(found) and all(
            instance["ready"]
            and all(each["caught_up"] for each in instance["destinations"].values())
            for instance in found.values()
        )

    def addresses(self) -> dict[str, str]:
        """Of the hosts, by name."""
        found = json.loads(self.ground("status", "--json"))["hosts"]
        return {host["name"]: host["address"] for host in found}

    @property
    def hosts(self) -> int:
        """How many there are."""
        return sum(int(region.partition("=")[2] or 1) for region in self.regions)

    def up(self) -> None:
        """`ray up` and `raylay up`, as deploy/README.md says."""
        regions = [part for region in self.regions for part in ("--region", region)]
        # Ray's own state of the launcher must not meet that of other clusters of this machine.
        os.environ["RAY_TMPDIR"] = os.environ["TMPDIR"] = str(self.directory)
        token = Path.home() / ".ray" / "auth_token"
        self.ground("up", *regions, "--network", NETWORK, *LINE)
        if not token.exists():
            self.ray("get-auth-token", "--generate")
        run("make", "wheel")
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        described = self.ground("cluster", "--packages", packages)
        if self.redis_on:
            described = described.replace(KEPT, f"GCS_STORAGE={self._start_redis()}")
        self.file.write_text(described)
        self.ray("up", "--yes", "--no-config-cache", str(self.file))
        wait_until("all nodes", lambda: self.living() == self.hosts)
        self.on("head", "cat > flights.yaml", given=self.fabric)
        up = f"raylay up flights.yaml --directory {DIRECTORY} --node-label region 2>&1"
        self.said_at_start = self.on("head", up)

    def _start_redis(self) -> str:
        """A Redis as deploy/redis.conf has it; its address."""
        text = (ROOT / "deploy" / "redis.conf").read_text()
        text = (
            text.replace("dir /var/lib/redis", "dir .")
            .replace("port 6379", f"port {REDIS_PORT}")
            .replace("/etc/redis/raylay-password.conf", "password.conf")
        )
        self.on(self.redis_on, "mkdir redis && cat > redis/redis.conf", given=text)
        self.on(self.redis_on, "cat > redis/password.conf", given=f"requirepass {REDIS_PASSWORD}\n")
        keep = "mkdir -p raylay && umask 077 && cat > raylay/redis-password"
        self.on("head", keep, given=REDIS_PASSWORD)
        self.on(self.redis_on, "cd redis && redis-server redis.conf --daemonize yes >/dev/null")
        ask = f"redis-cli -p {REDIS_PORT} --no-auth-warning -a {REDIS_PASSWORD} ping"
        wait_until("Redis", lambda: "PONG" in self.on(self.redis_on, ask, check=False))
        return f"{self.addresses()[HOSTS[self.redis_on]]}:{REDIS_PORT}"


@contextmanager
def running(
    directory: Path, *regions: str, redis_on: str = "", fabric: str = FABRIC
) -> Iterator[Cluster]:
    """A cluster on a playground; at the end the hosts are removed, or kept for who looks at them:
    RAYLAY_HOSTS_KEEP=1."""
    made = Cluster(directory, regions or tuple(HOSTS), redis_on, fabric)
    made.ground("down")
    try:
        made.up()
        yield made
    finally:
        if not os.environ.get("RAYLAY_HOSTS_KEEP"):
            made.ground("down")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A host for the head and one for each region."""
    with running(tmp_path_factory.mktemp("hosts")) as made:
        yield made
