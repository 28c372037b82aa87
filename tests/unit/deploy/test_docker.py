"""deploy/Dockerfile and deploy/compose.yaml, as far as a machine without Docker can tell: what they
copy is there and enough, what they run is a command, and ports, hosts and links fit together."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.test_pages_commands import wrong

from raylay.services.configuration.files import load_fabric

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
FILES = sorted((DEPLOY / "docker").glob("*.yaml"))
IN_IMAGE = "/etc/raylay/"


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, what follows) of a Dockerfile, without comments, its lines put together."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = re.findall(r"^([A-Z]+) +(.*)$", lines.replace("\\\n", " "), re.MULTILINE)
    assert len(found) == len([line for line in lines.replace("\\\n", " ").splitlines() if line])
    return found


IMAGE = instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))


def of(kind: str) -> list[str]:
    return [rest for instruction, rest in IMAGE if instruction == kind]


def from_checkout() -> list[str]:
    """The sources of each COPY but those of another stage."""
    return [name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]]


def compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def is_left_out(name: str) -> bool:
    """By .dockerignore: the last line that fits counts."""
    out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        rule = line.removeprefix("!").rstrip("/")
        parts = name.rstrip("/").split("/")
        if any(fnmatch("/".join(parts[: n + 1]), rule) for n in range(len(parts))):
            out = not line.startswith("!")
    return out


def test_what_is_copied_is_there_and_docker_sees_it() -> None:
    for name in from_checkout():
        assert (ROOT / name).exists(), name
        assert not is_left_out(name), name
    for name in (".venv", "build", "data", ".git", "tests", "docs/index.md"):
        assert is_left_out(name), name


def test_what_is_copied_is_enough_for_a_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tables = project["tool"]["setuptools"]
    needed = {path.split("/")[0] for path in tables["package-dir"].values()}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert needed | {"pyproject.toml"} <= set(from_checkout())
    extras = dict(rest.split("=", 1) for rest in of("ARG"))["EXTRAS"].split(",")
    assert {*extras, "spark"} <= set(project["project"]["optional-dependencies"])


def test_the_stages_have_the_python_that_raylay_needs() -> None:
    assert {rest.split()[0] for rest in of("FROM")} == {"python:3.11-slim"}
    assert len(of("FROM")) == 2


def test_it_runs_as_a_user_whose_data_is_a_volume() -> None:
    order = [instruction for instruction, _ in IMAGE]
    made = next(rest for rest in of("RUN") if "useradd" in rest)
    (user,), (volume,) = of("USER"), of("VOLUME")
    assert user != "root" and f"--create-home {user}" in made
    # What a volume's directory is when it is declared, is what a new volume is.
    assert f"--owner {user} {volume}" in made
    assert order.index("USER") < order.index("VOLUME") < order.index("ENTRYPOINT")


def test_java_comes_only_where_spark_is_asked_for() -> None:
    (java,) = [rest for rest in of("RUN") if "jre" in rest]
    assert java.startswith('if [ "$SPARK" = yes ]; then ')
    assert "SPARK=no" in of("ARG")


def commands() -> list[list[str]]:
    entry = json.loads(of("ENTRYPOINT")[0])
    health = json.loads(of("HEALTHCHECK")[0].split(" CMD ")[1])
    services = [entry + each["command"] for each in compose()["services"].values()]
    return [entry + json.loads(of("CMD")[0]), health, *services]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_what_runs_is_a_command_with_a_file_that_is_there(command: list[str]) -> None:
    assert command[0] == "raylay"
    assert list(wrong(" ".join(command))) == []
    (target,) = [rest.split()[1] for rest in of("COPY") if rest.startswith("deploy/docker")]
    assert target == IN_IMAGE
    for word in command[1:]:
        if word.startswith("/etc"):
            assert (DEPLOY / "docker" / Path(word).name).is_file() and word.startswith(IN_IMAGE)
        elif word.startswith("/"):
            assert word.startswith(of("VOLUME")[0] + "/")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_is_a_fabric(path: Path) -> None:
    settings = load_fabric([path])
    ports = {port for rest in of("EXPOSE") for port in map(int, rest.split())}
    assert {instance.client_port for instance in settings.instances} <= ports


def test_the_two_containers_are_a_pair() -> None:
    services = compose()["services"]
    published = []
    for name, service in services.items():
        file = Path(service["command"][1]).name
        (instance,) = load_fabric([DEPLOY / "docker" / file]).instances
        (other,) = set(services) - {name}
        assert (instance.name, instance.host, instance.group) == (name, name, "pair")
        _, outside, inside = service["ports"][0].split(":")
        assert int(inside) == instance.client_port
        published.append(outside)
        (link,) = instance.destinations
        (there,) = load_fabric([DEPLOY / "docker" / f"{other}.yaml"]).instances
        assert (link.sync, link.group) == (True, "pair")
        assert list(link.to) == [f"{other}:{there.replication_port}"]
        volume, place = service["volumes"][0].split(":")
        assert volume in compose()["volumes"] and place == of("VOLUME")[0]
    assert len(set(published)) == len(services) == 2


def test_the_build_is_that_of_the_checkout() -> None:
    for service in compose()["services"].values():
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
