"""The program of a worker process of a Ray that Raylay starts: Ray's own, without the modules that
Ray imports for what only some workers do.

A bare worker of Ray takes 60 MB. Almost half of it is for packages that an instance or a link never
uses: `requests` and `jsonschema`, which Ray needs in a cloud and for runtime environments, and,
where they are installed, pyarrow with numpy and pydantic, for which Ray sets up the pickling of
their values before the first call. Here the former are loaded when something first uses them, and
pickling is set up when the worker itself has imported such a package. All else is as in Ray,
whoever's work the worker does.

Ray runs this file as a script (`RayParams.worker_path`). Nothing here may keep a worker from its
start: what a later Ray does differently is left as Ray has it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any

RAY_PROGRAM = "ray._private.workers.default_worker"
"""The module that Ray runs as the program of a worker."""
LATE_PACKAGES = ("requests", "jsonschema", "yaml", "psutil")
"""Packages that `import ray` imports, and that Ray uses only within functions."""
PICKLED_PACKAGES = ("pyarrow", "pydantic", "starlette")
"""Packages for whose values Ray sets up pickling."""


def load_late(package: str) -> None:
    """Makes `import package` load nothing until an attribute of the package is asked for, set or
    listed. Python's own `LazyLoader` loads at the next `import` already, and is not for several
    threads."""
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    inside = vars(module)
    # The import of a submodule asks for it, and so loads the package first.
    path = inside.pop("__path__")
    execute = spec.loader.exec_module
    lock = threading.RLock()
    is_loading = False

    def load() -> None:
        nonlocal is_loading
        with lock:
            if is_loading or type(module) is not LateModule:
                return
            is_loading = True
            inside["__path__"] = path
            try:
                execute(module)
            except BaseException:
                del inside["__path__"]
                raise
            finally:
                is_loading = False
            ModuleType.__setattr__(module, "__class__", ModuleType)

    class LateModule(ModuleType):
        def __getattr__(self, name: str) -> Any:
            load()
            # Looks for a `__getattr__` of the package, too.
            return ModuleType.__getattribute__(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            # What a user sets (`psutil.PROCFS_PATH`) stays: the package would set it anew.
            load()
            ModuleType.__setattr__(self, name, value)

        def __dir__(self) -> list[str]:
            load()
            return [*ModuleType.__dir__(self)]

    module.__class__ = LateModule
    sys.modules[package] = module


class NoAddons:
    """Takes the place of Ray's `serialization_addons`."""

    def apply(self, context: Any) -> None:
        """Sets up nothing."""


def set_up_pickling_late() -> None:
    """Makes Ray set up the pickling of other packages' values before the first value is pickled
    after the process has imported one of them. There is no value of theirs before."""
    serialization: Any = importlib.import_module("ray._private.serialization")
    addons = serialization.serialization_addons

    class LateContext(serialization.SerializationContext):  # type: ignore[misc]
        has_addons = False

        def serialize(self, value: Any) -> Any:
            if not self.has_addons and any(each in sys.modules for each in PICKLED_PACKAGES):
                self.has_addons = True
                addons.apply(self)
            return super().serialize(value)

    serialization.SerializationContext = LateContext
    serialization.serialization_addons = NoAddons()


def fork_server() -> Any:
    """Returns the module `fork_server.py` beside this file. It is not found by its name where
    Python is told not to look beside scripts (`PYTHONSAFEPATH`), and as a module of Raylay it would
    take all that its package imports along."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
    spec = importlib.util.spec_from_file_location("fork_server", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fork_server"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Runs Ray's worker in this process, or ends it when a fork of another one does so."""
    forks = fork_server()
    start = forks.start_of()
    path = forks.socket_path(sys.argv)
    if path and forks.is_taken_over(path, start):
        os._exit(0)
    claim = None
    if path:
        with suppress(OSError):
            claim = forks.claim_server(path)
    is_prepared = False

    def prepare() -> None:
        nonlocal is_prepared
        if is_prepared:
            return
        is_prepared = True
        for package in LATE_PACKAGES:
            with suppress(Exception):
                load_late(package)
        with suppress(Exception):
            set_up_pickling_late()

    def load() -> None:
        prepare()
        with suppress(ImportError):
            importlib.import_module("ray._private.node")
        forks.keep_modules()

    if claim is not None:
        forks.start_server(claim, start, load)
    prepare()
    found = importlib.util.find_spec(RAY_PROGRAM)
    assert found is not None and found.origin is not None
    # The program sees what it would see if Python had been started with Ray's file.
    sys.argv[0] = found.origin
    if not sys.flags.safe_path:
        sys.path[0] = found.origin.rpartition("/")[0]
    runpy.run_path(found.origin, run_name="__main__")


if __name__ == "__main__":
    main()
