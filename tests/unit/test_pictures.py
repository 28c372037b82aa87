"""The pictures of docs/scenarios.md are those of the examples, as `raylay fabric check` draws them.

python tests/unit/test_pictures.py      # draws them anew
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from raylay.services.fabric.checks.check import check_settings
from raylay.services.topology import draw
from raylay.services.topology.check import CheckResult

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
PUBLISHING: dict[str, tuple[str, ...]] = {
    "hot_pair": (),
    "geographic": (),
    "three_regions": (),
    "hub_and_spoke": ("ingestion",),
    "one_way_feed": ("production",),
    "dmz_pair": (),
}
"""Where clients publish what is meant for everybody; nothing: everywhere."""


def checked(example: str) -> tuple[CheckResult, str]:
    """The check of an example's fabric, and the fabric's name."""
    script = runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="declared")
    fabric = script["declare"]()
    return check_settings(fabric.declared, PUBLISHING[example]), fabric.name


def drawn(example: str) -> str:
    """The fabric of an example as SVG."""
    return draw.svg(*checked(example))


@pytest.mark.parametrize("example", PUBLISHING)
def test_the_check_finds_no_error_in_the_example(example: str) -> None:
    assert checked(example)[0].errors == 0


@pytest.mark.parametrize("example", PUBLISHING)
def test_the_picture_is_that_of_the_example(example: str) -> None:
    assert (PICTURES / f"{example}.svg").read_text(encoding="utf-8") == drawn(example)


def test_every_picture_is_shown() -> None:
    page = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    names = {picture.name for picture in PICTURES.glob("*.svg")}
    assert names == {f"{example}.svg" for example in PUBLISHING}
    assert {name for name in names if f"(pictures/{name})" in page} == names


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name in PUBLISHING:
        (PICTURES / f"{name}.svg").write_text(drawn(name), encoding="utf-8")
