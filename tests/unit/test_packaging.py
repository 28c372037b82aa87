"""What is installed is what is in the tree, and the commands that the README names exist."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("actors", "services", "storage")
DOOR = "services/api"
"""What is installed as the package `raylay` itself."""
TARGETS = (
    "setup",
    "demo",
    "test",
    "test-all",
    "check",
    "sim",
    "pure-coverage",
    "bench",
    "soak",
    "clean",
    "types",
    "help",
    "test-hosts",
    "wheel",
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> list[Path]:
    return [
        path
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


def installed_as(path: Path) -> str:
    """The path of a file of the tree where it is installed."""
    name = path.relative_to(ROOT).as_posix()
    return "raylay/" + (name.removeprefix(f"{DOOR}/") if name.startswith(DOOR) else name)


def test_every_package_of_the_tree_is_listed(project: dict[str, Any]) -> None:
    in_tree = {installed_as(path).rpartition("/")[0].replace("/", ".") for path in modules()}
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(in_tree)
    assert len(listed) == len(set(listed))
    for path in {path.parent for path in modules()}:
        assert (path / "__init__.py").is_file(), f"{path} has no __init__.py"


def test_no_folder_shadows_a_package(project: dict[str, Any]) -> None:
    # A raylay/ folder beside the others would shadow the installed package in Ray's workers, and
    # a test folder named like a package would shadow that.
    assert not (ROOT / "raylay").exists()
    folders = {"raylay": DOOR} | {f"raylay.{part}": part for part in PARTS}
    assert project["tool"]["setuptools"]["package-dir"] == folders
    names = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert not names & set(sys.stdlib_module_names)
    assert not names & {"ray", "raylay", "lmdb", "typer", "rich"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree: building in the tree would leave files behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def built(copy: Path, how: str, out: Path) -> zipfile.ZipFile:
    program = f"import sys, setuptools.build_meta as b; print(b.build_{how}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


@pytest.fixture(scope="module")
def wheel(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(copy, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    expected = {installed_as(path) for path in modules()}
    assert {name for name in names if name.endswith(".py")} == expected
    assert {f"raylay/{part}/py.typed" for part in PARTS} <= names
    assert "raylay/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


SHORT = """
import __future__, site, sys
sys.path.insert(0, sys.argv[1])
site.addsitedir(sys.argv[1])
before = set(sys.modules)
import raylay.services
print(sorted(set(sys.modules) - before))
import raylay.services.client, raylay.services.fabric, raylay.storage, raylay.actors
from raylay import EPOCH, Client, CommandFailed, Fabric, Topic
assert Client is raylay.services.client.Client and Fabric is raylay.services.fabric.Fabric
assert (EPOCH, Topic) == (raylay.services.client.EPOCH, raylay.services.fabric.Topic)
for name in raylay.__all__:
    assert getattr(raylay, name), name
assert set(raylay.__all__) <= set(dir(raylay)) and not hasattr(raylay, "client")
print(raylay.__file__, raylay.storage.__file__)
"""


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_a_script_imports_what_it_needs_from_raylay(copy: Path, tmp_path: Path, how: str) -> None:
    """Installed, and beside its tree. What the environment itself has of it is not looked at."""
    target, out = tmp_path / "installed", tmp_path / "out"
    out.mkdir()
    built(copy, how, out).extractall(target)
    # Without -S the environment's own files of this project would be read first.
    done = subprocess.run(
        [sys.executable, "-S", "-c", SHORT, str(target)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    cheap, places = done.stdout.splitlines()
    assert ast.literal_eval(cheap) == ["raylay", "raylay.services"], "nothing is imported with it"
    door, storage = places.split()
    root = copy if how == "editable" else target / "raylay"
    assert door == str((copy / DOOR if how == "editable" else root) / "__init__.py")
    assert storage == str(root / "storage" / "__init__.py")


def test_dependencies_have_a_lower_and_an_upper_bound(project: dict[str, Any]) -> None:
    requirements = list(project["project"]["dependencies"])
    for name, extra in project["project"]["optional-dependencies"].items():
        requirements += extra if name != "dev" else []
    unbounded = [r for r in requirements if not re.search(r">=[\d.]+\w*,<\d", r)]
    assert not unbounded


def imported_names() -> set[str]:
    found = set()
    for path in modules():
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", text, re.MULTILINE))
    return found


def test_what_is_imported_is_a_dependency(project: dict[str, Any]) -> None:
    declared = list(project["project"]["dependencies"])
    declared += [r for e in project["project"]["optional-dependencies"].values() for r in e]
    distributions = {re.split(r"[\[>=<;! ]", r)[0].lower().replace("_", "-") for r in declared}
    provided = importlib.metadata.packages_distributions()
    missing = []
    for name in sorted(imported_names() - set(sys.stdlib_module_names) - {"raylay"}):
        if name == "opentelemetry":  # a namespace that several distributions fill
            assert "opentelemetry-sdk" in distributions
            continue
        if name == "pydantic_core":  # pydantic's documents import it, and demand one version
            assert "pydantic" in distributions
            continue
        if name == "typing_extensions":  # only type checkers import it, and bring it
            continue
        owners = {owner.lower().replace("_", "-") for owner in provided.get(name, [])}
        if name in provided and not owners & distributions:
            missing.append(f"{name} (of {', '.join(sorted(owners))})")
    # The client library for Prometheus comes with its OpenTelemetry exporter, and only with it.
    assert [name for name in missing if not name.startswith("prometheus_client")] == []


def test_the_script_can_be_loaded(project: dict[str, Any]) -> None:
    (script,) = project["project"]["scripts"].items()
    entry = importlib.metadata.EntryPoint(script[0], script[1], "console_scripts")
    assert entry.name == "raylay"
    assert callable(entry.load())


def dry_run(*arguments: str) -> list[str]:
    """The commands that make would run. The tests may themselves be run by make: forget that."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SEED", "SEEDS")
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in outer},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_makefile_has_its_targets() -> None:
    for number, target in enumerate(TARGETS):
        # The search for a Python, which takes longest, is made once.
        assert dry_run("--always-make", target, *(["PYTHON=python3"] if number else []))


def test_each_test_is_of_one_target() -> None:
    """`make test-all` runs what `make test` leaves out, and nothing twice."""
    chosen = {target: shlex.split(dry_run(target)[-1])[-1] for target in ("test", "test-all")}
    for slow in (False, True):
        for apart in ({}, {"soak": True}, {"hosts": True}):
            marks = {"slow": slow, "soak": False, "hosts": False} | apart
            taken = [target for target, marked in chosen.items() if eval(marked, {}, marks)]
            wanted = "test-all" if slow else "test"
            assert taken == ([] if apart else [wanted]), marks


@pytest.mark.parametrize(
    ("refusal", "fails", "called", "status"),
    [
        ("", "", ["make check", "make test-all", "make test-hosts"], 0),
        ("needs root", "", ["make check", "make test-all"], 0),
        ("", "check", ["make check"], 2),
        ("", "test-all", ["make check", "make test-all"], 2),
        ("", "test-hosts", ["make check", "make test-all", "make test-hosts"], 2),
    ],
)
def test_the_integration_run_is_make_check_then_the_rest_then_the_hosts(
    tmp_path: Path, refusal: str, fails: str, called: list[str], status: int
) -> None:
    """With a make that only says what it was asked, and a machine that lacks nothing."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    tools = {name: "exit 0" for name in ("ip", "java", "nft", "rsync", "sshd", "pgrep")}
    tools["make"] = f'echo "make $*"; [ "$*" != "{fails}" ] || exit 2'
    check = f'echo "{refusal}" >&2; exit 1' if refusal else "exit 0"
    tools["python3"] = tools["python3.11"] = f'[ "$2" != check ] || {{ {check}; }}; exit 0'
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [script],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [f"no tests on several hosts: {refusal}"] if refusal else []
    assert (done.stdout.splitlines(), done.returncode) == (called + said, status), done.stderr


def test_make_sim_passes_its_seeds() -> None:
    def command(*variables: str) -> str:
        return dry_run("sim", *variables)[-1].split("sim.run", 1)[1].strip()

    assert command() == "--seeds 1000"
    assert command("SEEDS=20") == "--seeds 20"
    assert command("SEED=5") == "--seeds 1 --seed 5"
    assert command("SEED=5", "SEEDS=3") == "--seeds 3 --seed 5"


@pytest.mark.parametrize("target", ["setup", "demo", "test"])
def test_without_a_python_make_says_first_what_installs_one(tmp_path: Path, target: str) -> None:
    for name in ("Makefile", "pyproject.toml", "deploy/type_links.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "PYTHON=", target], cwd=tmp_path, env=outside, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert "Python 3.11 or newer" in first and "sudo apt-get install python3" in first
    assert len(rest) == 1, "the line in which make says that it stops"
