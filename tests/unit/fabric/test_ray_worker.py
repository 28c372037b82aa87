"""The worker process of a Ray that Raylay starts: modules that are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.actors import ray_worker

FIRST = """
import time
time.sleep(0.05)
loads = loads + 1 if "loads" in globals() else 1
from late_one import part
from late_one.part import VALUE
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that takes a while to load, and imports itself meanwhile."""
    place = tmp_path / "late_one"
    place.mkdir()
    (place / "__init__.py").write_text(FIRST)
    (place / "part.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late_one"
    for name in ("late_one", "late_one.part"):
        sys.modules.pop(name, None)


def test_a_late_package_is_loaded_by_its_first_use_and_not_by_an_import(package: str) -> None:
    ray_worker.load_late(package)
    module = __import__(package)
    assert "late_one.part" not in sys.modules
    assert module.VALUE == 7
    assert module.part is sys.modules["late_one.part"]
    with pytest.raises(AttributeError, match="missing"):
        _ = module.missing
    assert module.loads == 1


def test_the_import_of_a_submodule_loads_a_late_package_first(package: str) -> None:
    ray_worker.load_late(package)
    from late_one.part import VALUE  # type: ignore[import-not-found]

    assert VALUE == 7
    assert sys.modules[package].loads == 1


def test_a_late_package_keeps_the_attributes_that_it_makes_when_asked(
    package: str, tmp_path: Path
) -> None:
    """`jsonschema.RefResolver` is such an attribute."""
    with (tmp_path / package / "__init__.py").open("a") as file:
        file.write(
            "def __getattr__(name):\n"
            "    if name == 'made':\n        return 8\n"
            "    raise AttributeError(name)\n"
        )
    ray_worker.load_late(package)
    module = sys.modules[package]
    assert module.made == 8
    assert module.made == 8
    with pytest.raises(AttributeError, match="missing"):
        _ = module.missing
    assert module.loads == 1


def test_what_is_set_in_a_late_package_before_its_first_use_stays(package: str) -> None:
    """`psutil.PROCFS_PATH` is such an attribute."""
    ray_worker.load_late(package)
    module = sys.modules[package]
    module.VALUE = 9
    assert module.loads == 1
    assert module.VALUE == 9


def test_a_late_package_lists_all_that_it_has(package: str) -> None:
    ray_worker.load_late(package)
    assert "VALUE" in dir(sys.modules[package])


SCRIPT = """
import sys
sys.path.insert(0, {actors!r})
import ray_worker
sys.path.pop(0)
before = [*sys.path]
def run(path, run_name):
    print(path, sys.argv[0], set(sys.path) >= set(before))
ray_worker.runpy.run_path = run
sys.argv[:] = ["ray_worker.py"]
ray_worker.main()
"""


def test_a_worker_begins_where_python_does_not_look_beside_scripts() -> None:
    """`PYTHONSAFEPATH` demands it; all of `sys.path` is the user's then."""
    actors = str(Path(ray_worker.__file__).parent)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(actors=actors)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    path, argument, is_kept = ended.stdout.split()
    assert path == argument
    assert path.endswith("default_worker.py")
    assert is_kept == "True"


def test_several_threads_load_a_late_package_once(package: str) -> None:
    ray_worker.load_late(package)
    module = sys.modules[package]
    barrier = threading.Barrier(4)
    found: list[int] = []

    def use() -> None:
        barrier.wait()
        found.append(module.VALUE)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7, 7, 7, 7]
    assert module.loads == 1


def test_a_late_package_that_cannot_be_loaded_says_so_at_each_use(
    package: str, tmp_path: Path
) -> None:
    ray_worker.load_late(package)
    (tmp_path / package / "part.py").write_text("raise OSError('no such disk')\n")
    for _ in range(2):
        with pytest.raises(OSError, match="no such disk"):
            _ = sys.modules[package].VALUE
        sys.modules.pop("late_one.part", None)


def test_a_package_that_is_not_installed_or_loaded_already_is_left_alone() -> None:
    ray_worker.load_late("no_such_package_anywhere")
    assert "no_such_package_anywhere" not in sys.modules
    before = sys.modules["pytest"]
    ray_worker.load_late("pytest")
    assert sys.modules["pytest"] is before


def test_pickling_of_other_packages_is_set_up_when_the_worker_has_imported_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray._private.serialization as serialization

    done: list[Any] = []
    given: list[Any] = []

    class Context:
        def __init__(self, worker: Any) -> None:
            serialization.serialization_addons.apply(self)  # type: ignore[arg-type]

        def serialize(self, value: Any) -> Any:
            given.append(value)
            return value

    monkeypatch.setattr(serialization, "SerializationContext", Context)
    monkeypatch.setattr(serialization, "serialization_addons", SimpleNamespace(apply=done.append))
    monkeypatch.setattr(ray_worker, "PICKLED_PACKAGES", ("rare_package",))
    ray_worker.set_up_pickling_late()
    context: Any = serialization.SerializationContext(None)  # type: ignore[arg-type]
    assert context.serialize(1) == 1
    assert done == []
    monkeypatch.setitem(sys.modules, "rare_package", sys)
    assert context.serialize(2) == 2
    assert context.serialize(3) == 3
    assert done == [context]
    assert given == [1, 2, 3]
