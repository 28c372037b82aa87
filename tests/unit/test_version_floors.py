"""No version that pyproject.toml lets in is one that an advisory names."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


class Advisory(NamedTuple):
    """Since when a package has what was found in it mended, and by which name it was published."""

    safe_from: str
    names: tuple[str, ...]
    about: str


ADVISORIES = {
    "aiohttp": Advisory(
        "3.14.3",
        ("CVE-2026-69244", "GHSA-cq5v-8q36-5273", "GHSA-mfx4-hv73-q22v", "CVE-2026-54273"),
        "reads beyond the heap at a malformed chunked answer; smuggled requests",
    ),
    "cryptography": Advisory(
        "50", ("CVE-2026-69247", "CVE-2026-39892", "CVE-2026-26007"), "three, the last in 49"
    ),
    "jinja2": Advisory(
        "3.1.6", ("CVE-2025-27516", "GHSA-cpwx-vrp4-4pq7"), "templates get out of the sandbox"
    ),
    "msgpack": Advisory(
        "1.2.1",
        ("CVE-2026-57585", "GHSA-6v7p-g79w-8964"),
        "an Unpacker that goes on after an error reads beyond its buffer",
    ),
    "orjson": Advisory(
        "3.11.6", ("CVE-2025-67221", "GHSA-hx9q-6w63-j58v"), "recursion without a bound"
    ),
    "protobuf": Advisory(
        "6.33.5",
        ("CVE-2026-0994", "GHSA-7gcm-g887-7qv7", "CVE-2025-4565"),
        "recursion without a bound",
    ),
    "pyarrow": Advisory(
        "23.0.1", ("CVE-2026-25087", "GHSA-rgxp-2hwp-jwgg"), "use after free of an IPC file"
    ),
    "pyjwt": Advisory(
        "2.13.0",
        (
            "CVE-2026-48526",
            "GHSA-xgmm-8j9v-c9wx",
            "CVE-2026-48522",
            "CVE-2026-48523",
            "CVE-2026-48524",
            "CVE-2026-48525",
            "CVE-2026-32597",
        ),
        "a public key taken for an HMAC secret; critical headers passed over",
    ),
    "pymongo": Advisory("4.18.1", ("CVE-2026-88029",), "its BSON"),
    "pyyaml": Advisory("5.4", ("CVE-2020-14343",), "full_load runs code"),
    "ray": Advisory(
        "2.54.0", ("CVE-2026-27482",), "a web page deletes jobs; below 2.52 there are no tokens"
    ),
    "setuptools": Advisory(
        "78.1.1", ("CVE-2025-47273", "GHSA-5rjg-fvgr-3xxf"), "writes outside its directory"
    ),
}
"""The lowest version that no advisory known in November 2026 names, of what Raylay installs itself.
Whoever reads of another one adds it here, and the test names the line of pyproject.toml."""


def required() -> Iterator[tuple[str, Requirement]]:
    """Each requirement with the part of pyproject.toml that it stands in."""
    read = tomllib.loads(PROJECT.read_text())
    parts = {
        "build-system": read["build-system"]["requires"],
        "dependencies": read["project"]["dependencies"],
        **read["project"]["optional-dependencies"],
    }
    for part, lines in parts.items():
        for line in lines:
            yield part, Requirement(line)


def floor(requirement: Requirement) -> Version | None:
    """The lowest version that a requirement lets in; None: it has no lower bound."""
    found = [
        Version(each.version) for each in requirement.specifier if each.operator in (">=", "==")
    ]
    return max(found, default=None)


def below_the_floors(requirements: Iterator[tuple[str, Requirement]]) -> list[str]:
    wrong = []
    for part, requirement in requirements:
        lowest = floor(requirement)
        advisory = ADVISORIES.get(canonicalize_name(requirement.name))
        if lowest is None:
            wrong.append(f"{part}: {requirement} has no lower bound")
        elif advisory is not None and lowest < Version(advisory.safe_from):
            wrong.append(
                f"{part}: {requirement} lets in what {advisory.names[0]} names ({advisory.about}): "
                f"write >={advisory.safe_from}"
            )
    return wrong


def test_no_floor_is_below_what_is_safe() -> None:
    assert below_the_floors(required()) == []
    named = {canonicalize_name(requirement.name) for _, requirement in required()}
    assert ADVISORIES.keys() <= named, "an advisory of something that is not required any more"


def test_a_floor_that_is_too_low_is_found() -> None:
    wrong = below_the_floors(
        iter((("a", Requirement("PyJWT[crypto]>=2.9,<3")), ("b", Requirement("requests"))))
    )
    assert "lets in what CVE-2026-48526" in wrong[0] and "no lower bound" in wrong[1]


@pytest.mark.parametrize("name", ADVISORIES)
def test_what_is_installed_is_above_them(name: str) -> None:
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert Version(installed) >= Version(ADVISORIES[name].safe_from), ADVISORIES[name].about


def test_each_floor_of_an_advisory_names_it() -> None:
    lines = PROJECT.read_text().splitlines()
    for name in ADVISORIES.keys() - {"pyyaml", "setuptools"}:
        wanted = ADVISORIES[name].names[0]
        assert any(wanted in line and name in line.lower() for line in lines), f"{name}: {wanted}"
