"""services/fabric/cluster/ray_files.py: where a Ray that is begun has its sockets, and its
token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.private_files import open_to_others

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster import ray_files
from raylay.services.fabric.records import registry

pytestmark = [
    pytest.mark.usefixtures("no_umask"),
    pytest.mark.covers("Configuration", "nobody else gets at the sockets"),
]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory that others may read."""
    monkeypatch.delenv(ray_files.TEMPORARY_VARIABLE, raising=False)
    monkeypatch.setattr(ray_files, "DIRECTORY_BYTES_MAX", 1_000)
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir(0o755)
    return tmp_path / "runtime"


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ray_files.TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def test_sessions_are_in_a_directory_that_others_cannot_enter(runtime: Path) -> None:
    assert ray_files.temporary_directory() == str(runtime / "ray" / "tmp")
    assert open_to_others(runtime / "ray") == []
    # Ray makes it, and opens it to everybody.
    (runtime / "ray" / "tmp").mkdir(0o777)
    assert ray_files.temporary_directory() == str(runtime / "ray" / "tmp")


def test_a_directory_that_was_opened_is_refused(runtime: Path) -> None:
    (runtime / "ray").mkdir(0o755)
    with pytest.raises(FabricError, match=r"others can enter .*ray.*: chmod 700 "):
        ray_files.temporary_directory()


def test_with_a_long_name_they_are_in_tmp(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv(ray_files.TEMPORARY_VARIABLE, raising=False)
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(runtime / ("x" * 40)))
    found = ray_files.temporary_directory()
    assert found == f"/tmp/raylay-{os.getuid()}/ray/tmp"
    assert len(found) <= ray_files.DIRECTORY_BYTES_MAX


def test_the_error_says_to_set_a_shorter_directory_where_that_in_tmp_is_not_ones_own(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.delenv(ray_files.TEMPORARY_VARIABLE, raising=False)
    chosen = runtime / ("x" * 40)
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(chosen))
    chosen.mkdir()
    # What is in /tmp belongs to the user of these tests: to somebody else it is another one's.
    mine, another = os.getuid(), os.getuid() + 1
    in_tmp = f"/tmp/raylay-{another}"

    def own_directory(path: Path, *remedy: str) -> Path:
        if str(path) != in_tmp:
            return path
        with monkeypatch.context() as made:
            made.setattr(registry, "make_directory", lambda _: None)
            made.setattr(Path, "stat", lambda _: os.stat(chosen))
            return real(path, *remedy)

    real = registry.own_directory
    monkeypatch.setattr(registry, "own_directory", own_directory)
    monkeypatch.setattr(os, "getuid", lambda: another)
    assert os.stat(chosen).st_uid == mine
    with pytest.raises(FabricError) as caught:
        ray_files.temporary_directory()
    longest = ray_files.DIRECTORY_BYTES_MAX - len("/ray/tmp")
    assert str(caught.value) == (
        f"{in_tmp} belongs to another user: it is needed as the name of the runtime directory "
        f"{chosen} is too long for Ray's sockets: set RAYLAY_RUNTIME_DIR to a directory with a "
        f"name of at most {longest} bytes, or set RAY_TMPDIR"
    )
    # A directory whose name is as long as it says is short enough.
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, "/" + "x" * (longest - 1))
    found = registry.runtime_path() / "ray" / "tmp"
    assert len(str(found)) == ray_files.DIRECTORY_BYTES_MAX


def test_the_user_may_say_where(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_files.TEMPORARY_VARIABLE, str(runtime))
    assert ray_files.temporary_directory() is None


def test_the_token_is_there_before_ray_makes_it(token: Path) -> None:
    ray_files.keep_token_private()
    made = token.read_text()
    assert len(made) == 64 and int(made, 16)
    assert open_to_others(token.parent) == []
    assert list(token.parent.iterdir()) == [token]
    ray_files.keep_token_private()
    assert token.read_text() == made


def test_a_token_that_others_could_read_is_closed_to_them(token: Path) -> None:
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    ray_files.keep_token_private()
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("secret", 0o600)


@pytest.mark.parametrize("name", ray_files.TOKEN_VARIABLES)
def test_a_token_that_is_elsewhere_is_the_users(
    token: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")
    ray_files.keep_token_private()
    assert not token.exists()


def test_what_cannot_be_made_is_left_to_ray(token: Path) -> None:
    token.parent.write_text("a file")
    ray_files.keep_token_private()
