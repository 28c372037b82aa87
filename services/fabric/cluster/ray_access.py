"""Ray as a fabric sees it: joining one or beginning one, what its head knows, errands on nodes.

Ray's own calls wait for a head that is away as long as nodes outlive one, ten minutes here. Whoever
asks the head through this module hears within seconds that it does not answer (`HeadSilent`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import logging
import os
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster import ray_files
from raylay.services.fabric.cluster.nodes import ClusterNode
from raylay.services.net.ray_head import answers_as_head
from raylay.services.server.open_transports import is_loopback
from raylay.storage.files import make_directory

START_TIMEOUT_S_DEFAULT = 120.0
STOP_TIMEOUT_S_DEFAULT = 15.0
POLL_S = 0.05
STATUS_TIMEOUT_S = 5.0
BUSY_TIMEOUT_S = 18.0
"""Time, in seconds, in which a head must answer that gives signs of life: its machine is busy."""
OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Nothing but control calls goes through Ray: its least possible object store."""
NODES_TIMEOUT_S = 60.0
AUTH_VARIABLE = "RAY_AUTH_MODE"
TOKEN_MODE = "token"
ALIVE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call of Ray's head that changes nothing."""
NO_DASHBOARD = "127.0.0.1:1"
"""The address of the dashboard that is not there."""
HEAD_OUTAGE_S = 600
"""Time for which the nodes of a Ray that we start outlive its head."""

Answer = TypeVar("Answer")
_LOG = logging.getLogger(__name__)


class HeadSilent(FabricError):
    """The error that Ray's head does not answer. Calls to instances and clients still work without
    the head."""


def ray_module() -> Any:
    """Returns the module of Ray. It is imported late, because that takes half a second, which
    `raylay --help` should not."""
    # Ray prints every start and death of workers on the driver's terminal, log_to_driver=False or
    # not; the fabric's events tell the same in one line. It reads this when it is imported.
    os.environ.setdefault(
        "RAY_DEDUP_LOGS_SKIP_REGEX",
        "A worker died or was killed|worker processes have been started",
    )
    import ray

    return ray


def adopt_auth_mode(mode: str) -> None:
    """Takes over the authentication mode of a running Ray, unless the user sets one: Ray itself
    does not look for its token when it is given an address."""
    if not mode or AUTH_VARIABLE in os.environ:
        return
    os.environ[AUTH_VARIABLE] = mode
    if "ray" in sys.modules:
        # Ray read the variable when it was imported.
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")


def demand_token() -> None:
    """Makes a Ray that this process starts ask every caller for a token: it listens on all
    addresses of the machine, and runs any code that a caller sends.

    Raises:
        FabricError: the environment says that it asks for none.
    """
    if not os.environ.get(AUTH_VARIABLE):
        os.environ.pop(AUTH_VARIABLE, None)
        adopt_auth_mode(TOKEN_MODE)
    mode = os.environ[AUTH_VARIABLE]
    if mode.lower() != TOKEN_MODE:
        raise FabricError(
            f"{AUTH_VARIABLE} is {mode!r}: Ray would be reached from other hosts, and run any code "
            f"for whoever reaches it: unset it, or set {AUTH_VARIABLE}={TOKEN_MODE}"
        )


def refuse_open_ray(address: str) -> None:
    """Raises FabricError where a Ray that other hosts reach answers without a token. A head that
    does not answer such a call at all (because it has TLS, or is away) is not judged here.

    Args:
        address: address of its head.
    """
    host = address.rpartition(":")[0]
    if is_loopback(host):
        return
    # Ray has imported it already.
    import grpc

    # A proxy of the environment is for the web.
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            channel.unary_unary(ALIVE_METHOD)(b"", timeout=STATUS_TIMEOUT_S)
        except grpc.RpcError:
            return
    raise FabricError(
        f"Ray at {address} lets in everybody who reaches it, and runs any code for him: start it "
        f"with {AUTH_VARIABLE}={TOKEN_MODE} (`ray get-auth-token --generate` makes a token), or "
        "on 127.0.0.1 alone (docs/security.md)"
    )


def join_ray(
    address: str | None, *, start: bool = False, head_directory: Path | None = None
) -> bool:
    """Connects to Ray unless this process is connected. Returns whether it did.

    Args:
        address: address of its head, or `auto`.
        start: begin one on this machine, which ends with this process.
        head_directory: directory in which the head of a newly started Ray keeps its state; former
            content is removed first. None: it keeps its state in memory, and Ray ends with its
            head.

    Raises:
        FabricError: none can be reached, or it does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_OUTAGE_S))
    ray = ray_module()
    if ray.is_initialized():
        return False
    if not start:
        refuse_silent_head(address)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "raylay"}
    if start:
        with _head_storage(head_directory):
            start_ray(quiet)
        return True
    try:
        with _own_termination():
            ray.init(address=address or "auto", **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise FabricError(
            f"no Ray can be reached at {address or 'this machine'}: {first_line(error)}"
            + ("" if AUTH_VARIABLE in os.environ else f"; does it want {AUTH_VARIABLE}=token?")
        ) from None
    except OSError as error:
        # Ray writes files of its own for each process that joins it.
        raise FabricError(
            f"Ray at {address or 'this machine'} cannot be joined: {error.filename or 'its files'}:"
            f" {error.strerror or error}"
        ) from None
    return True


def refuse_silent_head(address: str | None) -> None:
    """Ray itself waits as long for a head as nodes outlive one.

    Raises:
        HeadSilent: nothing listens there.
    """
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), STATUS_TIMEOUT_S).close()
    except OSError as error:
        raise _silent(address, str(error.strerror or error)) from None


def _silent(address: str | None, why: str) -> HeadSilent:
    return HeadSilent(
        f"Ray's head at {address} does not answer ({why}): what asks instances for their status, "
        "starts or stops them needs it; clients do not"
    )


def head_address() -> str:
    """Returns the address, `host:port`, of the head of the Ray that this process is connected
    to."""
    return str(ray_module().get_runtime_context().gcs_address)


def ask_head(question: Callable[[], Answer], timeout_s: float = STATUS_TIMEOUT_S) -> Answer:
    """Returns the result of a call that needs Ray's head.

    Args:
        timeout_s: time, in seconds, after which a head without a sign of life counts as silent. A
            head that gives a sign of life has `BUSY_TIMEOUT_S`.

    Raises:
        HeadSilent: the head is away, or did not answer in time.
    """
    address = str(ray_module().get_runtime_context().gcs_address)
    refuse_silent_head(address)
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:
            errors.append(error)

    # A daemon: where the head stands still this call stays until it goes on.
    asking = threading.Thread(target=ask, name="raylay-head", daemon=True)
    asking.start()
    asking.join(timeout_s)
    waited_s = timeout_s
    if asking.is_alive() and answers_as_head(address, timeout_s):
        waited_s = max(timeout_s, BUSY_TIMEOUT_S)
        asking.join(waited_s - timeout_s)
    if errors:
        raise errors[0]
    if not answers:
        raise _silent(address, f"nothing within {waited_s:g} s")
    return answers[0]


@contextmanager
def _head_storage(directory: Path | None) -> Iterator[None]:
    """Makes a Ray head that is begun in the block store its tables in the directory. None: the head
    keeps them in memory."""
    if directory is None or "RAY_REDIS_ADDRESS" in os.environ:
        yield
        return
    shutil.rmtree(directory, ignore_errors=True)
    make_directory(directory)
    settings = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(directory)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        # Another Ray that this process begins has another head.
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


LOG_LIMITS = {"RAY_ROTATION_MAX_BYTES": str(16 << 20), "RAY_ROTATION_BACKUP_COUNT": "2"}
"""Limits of each log file of Ray's own processes: Ray would keep six files of 512 MiB."""


STACK_PRINTER = "_ZN3ray6RayLog27InstallFailureSignalHandlerEPKcb"
"""Symbol of `ray::RayLog::InstallFailureSignalHandler(char const*, bool)` in Ray's library."""


def start_ray(options: dict[str, Any]) -> None:
    """Starts a Ray on this machine. If the machine is too busy for Ray's own time limits, it is
    tried once more.

    Raises:
        FabricError: it did not start, or its files would be open to others.
    """
    ray = ray_module()
    demand_token()
    # Ray makes its workers nice, so that any other process goes before them: a broker is not that.
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name, value in LOG_LIMITS.items():
        os.environ.setdefault(name, value)
    temporary_directory = ray_files.temporary_directory()
    ray_files.keep_token_private()
    for attempt in (1, 2):
        try:
            with _small_ray(), _own_termination():
                ray.init(
                    address="local",
                    _temp_dir=temporary_directory,
                    num_cpus=os.cpu_count() or 1,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    **options,
                )
            return
        except Exception as error:  # Ray raises a bare one when its node is too slow to start
            ray.shutdown()
            if attempt == 2:
                raise FabricError(
                    f"Ray does not start on this machine: {first_line(error)}; is it very busy, "
                    "or out of memory or disk?"
                ) from None


@contextmanager
def _own_termination() -> Iterator[None]:
    """Keeps the program's handler of SIGTERM while Ray starts. Commands have such a handler.

    `ray.init` replaces it twice. Ray's Python part sets a handler that ends the process. Ray's C++
    part sets one, once in a process, that prints a stack and ends the process: this function lets
    it do so first, and then sets the program's handler again.
    """
    before = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if before in (signal.SIG_DFL, None) or not in_main_thread:
        yield
        put_in_place = signal.getsignal(signal.SIGTERM)
        if in_main_thread and put_in_place is not None:
            # A handler of Python's replaces the one that the C++ part has set.
            signal.signal(signal.SIGTERM, put_in_place)
        return
    library = importlib.import_module("ray._raylet").__file__
    with suppress(OSError, AttributeError):  # this version of Ray has no such function
        ctypes.CDLL(library)[STACK_PRINTER](None, False)
    signal.signal(signal.SIGTERM, before)
    utilities, name = importlib.import_module("ray._private.utils"), "set_sigterm_handler"
    own = vars(utilities).get(name)
    setattr(utilities, name, lambda _: None)
    try:
        yield
    finally:
        setattr(utilities, name, own)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _small_ray() -> Iterator[None]:
    """Makes a Ray that is begun in the block start no more than a fabric needs: neither the process
    that reads its workers' output for drivers (`log_to_driver` is off), nor the one that asks for
    more nodes, nor the dashboard's, which `include_dashboard=False` leaves without pages, and the
    agent of each node without what serves those pages. Its workers are `actors/ray_worker.py`. Each
    of the processes takes up to a second of processor time and 70 MB, and Ray waits for the
    dashboard's. `ray.init` offers no option for any of it."""
    changes = (
        ("ray._private.parameter", "RayParams", _small_parameters),
        ("ray._private.node", "Node.start_api_server", lambda _: _start_no_dashboard),
        (
            "ray._private.utils",
            "get_dashboard_dependency_error",
            lambda _: lambda: ImportError("no dashboard is wanted"),
        ),
    )
    before = []
    try:
        for module, path, changed in changes:
            *owners, name = path.split(".")
            try:
                place: Any = importlib.import_module(module)
                for owner in owners:
                    place = getattr(place, owner)
                own = vars(place)[name]
                value = changed(own)
            except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
                _tell_of_other_ray(f"{module}.{path}", error)
                continue
            before.append((place, name, own))
            setattr(place, name, value)
        yield
    finally:
        for place, name, own in before:
            setattr(place, name, own)


def _small_parameters(params: Any) -> Any:
    """Returns what takes the place of `RayParams`."""
    known = inspect.signature(params).parameters
    wanted: dict[str, Any] = {"include_log_monitor": False, "no_monitor": True}
    try:
        wanted["worker_path"] = _worker_program()
    except ImportError as error:
        _tell_of_other_ray("the program of a worker", error)
    for name in sorted(wanted.keys() - known.keys()):
        _tell_of_other_ray(f"RayParams({name}=…)", None)
    return partial(params, **{name: wanted[name] for name in wanted if name in known})


def _tell_of_other_ray(what: str, error: Exception | None) -> None:
    """Logs that Ray has not what it had: it is started as it is, and is only larger."""
    _LOG.warning(
        "Ray %s is not as expected at %s (%r): its processes may take more memory and time",
        ray_module().__version__,
        what,
        error,
    )


def _start_no_dashboard(node: Any, **_: Any) -> None:
    """Takes the place of `Node.start_api_server`."""
    node._webui_url = ""
    # A node's agent would write an error each second for as long as there is no address.
    try:
        constants: Any = importlib.import_module("ray._private.ray_constants")
        node.get_gcs_client().internal_kv_put(
            constants.DASHBOARD_ADDRESS.encode(),
            NO_DASHBOARD.encode(),
            True,
            constants.KV_NAMESPACE_DASHBOARD,
        )
    except (ImportError, AttributeError, TypeError) as error:
        _tell_of_other_ray("the dashboard's address", error)


def _worker_program() -> str:
    """Returns the path of the file that Ray's workers run.

    Raises:
        ImportError: Ray's own is not where that file looks for it.
    """
    from raylay.actors import ray_worker

    if importlib.util.find_spec(ray_worker.RAY_PROGRAM) is None:
        raise ModuleNotFoundError(f"no module {ray_worker.RAY_PROGRAM}")
    return str(Path(ray_worker.__file__).absolute())


def leave_ray() -> None:
    """Disconnects from Ray. If this process began the Ray, that Ray ends, and its session directory
    is removed: each start makes one, and Ray never removes any. If the Ray goes on, only the logs
    of this process are removed."""
    session = _session()
    ray_module().shutdown()
    if session is None:
        return
    directory, is_own = session
    if is_own:
        shutil.rmtree(directory, ignore_errors=True)
        latest = directory.with_name("session_latest")
        if latest.is_symlink() and not latest.exists():
            latest.unlink(missing_ok=True)
        return
    # Three files, 8 kB: 70 MB a day of a command every ten seconds.
    for path in (directory / "logs").glob(f"**/*_{os.getpid()}.log"):
        with suppress(OSError):
            path.unlink()


def _session() -> tuple[Path, bool] | None:
    """Returns the session directory of the Ray that this process is connected to, and whether this
    process began that Ray; None: the process is connected to no Ray."""
    worker: Any = importlib.import_module("ray._private.worker")
    node = worker._global_node
    if node is None:
        return None
    return Path(node.get_session_dir_path()), bool(node.head)


def logs_directory() -> str:
    """Returns the directory of the logs of the Ray that this process is connected to."""
    session = _session()
    return str(session[0] / "logs") if session is not None else "Ray's logs"


def actor_state(handle: Any) -> dict[str, Any]:
    """Returns the state, pid, node and restarts of an actor, as Ray's head knows them; works for an
    actor that does not answer. Empty: they are not known.

    Raises:
        HeadSilent: the head does not answer.
    """
    from ray._private import state as ray_state

    try:
        found = ask_head(lambda: ray_state.actors(handle._actor_id.hex()))
    except HeadSilent:
        raise
    except Exception:
        return {}
    if not found:
        return {}
    address = found.get("Address") or {}
    return {
        "state": found.get("State", ""),
        "pid": found.get("Pid") or 0,
        "node": address.get("NodeID", ""),
        "restarts": found.get("NumRestarts", 0),
    }


def living_nodes() -> list[ClusterNode]:
    """Returns the living nodes of the cluster.

    Raises:
        HeadSilent: the head does not answer.
    """
    return [
        ClusterNode(found["NodeManagerAddress"], found.get("Labels") or {})
        for found in ask_head(ray_module().nodes)
        if found.get("Alive")
    ]


def dead_nodes() -> list[tuple[ClusterNode, int]]:
    """Returns the nodes that are gone, each with the time of its end in milliseconds since 1970.

    Raises:
        HeadSilent: the head does not answer.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    address = str(ray_module().get_runtime_context().gcs_address)
    known = ask_head(lambda: raylet.GcsClient(address=address).get_all_node_info().values())
    return [
        (ClusterNode(found.node_manager_address, dict(found.labels)), int(found.end_time_ms))
        for found in known
        if found.end_time_ms
    ]


def is_here(node: str) -> bool:
    """Returns whether this process is on that node: a pid of another one says nothing here."""
    return not node or node == ray_module().get_runtime_context().get_node_id()


def kill_on_node(node: str, pid: int) -> None:
    """Sends SIGKILL to a process of a node. The node is given by its id in hexadecimal; empty: this
    node."""
    ray = ray_module()
    if is_here(node):
        kill_process(pid)
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.get(task(kill_process, scheduling_strategy=there).remote(pid), timeout=STATUS_TIMEOUT_S)


def on_node(
    labels: dict[str, str],
    function: Callable[..., Answer],
    *arguments: Any,
    timeout_s: float | None = START_TIMEOUT_S_DEFAULT,
) -> Answer:
    """Calls a function on a node with these labels, and returns its result.

    Args:
        timeout_s: time, in seconds, that the function has; None: no limit, and the function is not
            called again if the node ends meanwhile.

    Raises:
        FabricError: no node has these labels, or it did not answer.
    """
    ray = ray_module()
    try:
        options: dict[str, Any] = {"max_retries": 0} if timeout_s is None else {}
        reference = task(function, label_selector=labels, **options).remote(*arguments)
        answer: Answer = ray.get(reference, timeout=timeout_s)
        return answer
    except ray.exceptions.RayError as error:
        raise FabricError(f"no node with labels {labels} answered: {first_line(error)}") from None


def on_other_nodes(
    function: Callable[..., Answer], *arguments: Any, timeout_s: float = NODES_TIMEOUT_S
) -> list[Answer]:
    """Calls a function on each living node but this one, and returns the results of those that
    answer in time.

    Raises:
        HeadSilent: the head does not answer.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = ray_module()
    nodes = [each["NodeID"] for each in ask_head(ray.nodes) if each.get("Alive")]
    asked = []
    for node in nodes:
        if not is_here(node):
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            asked.append(task(function, scheduling_strategy=there).remote(*arguments))
    if not asked:
        return []
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
    answers = []
    for reference in done:
        with suppress(ray.exceptions.RayError):
            answers.append(ray.get(reference))
    return answers


def task(function: Callable[..., Any], **options: Any) -> Any:
    """Returns a function as a Ray task that reserves no CPU."""
    from raylay.actors import launch

    return launch.task(function, **options)


def kill_process(pid: int) -> None:
    """Sends SIGKILL to a process; a process that is gone already is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it is gone, which was the aim


def await_process_end(pid: int, timeout_s: float) -> None:
    """Returns when the process is gone, so that its directory and ports are free."""
    if not pid:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)


UNREACHABLE = "its process cannot be reached at the moment, as while it is restarted: ask again"


def first_line(error: BaseException) -> str:
    """Returns an error in one line. For an error inside an actor it is the error's own text,
    without the stack that Ray adds; for an actor that cannot be reached, `UNREACHABLE`."""
    # The class is compared by its name, because Ray may not be loaded.
    if any(each.__name__ == "ActorUnavailableError" for each in type(error).__mro__):
        return UNREACHABLE
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, BaseException) else error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines and "Traceback" in text else (lines[0] if lines else repr(error))
